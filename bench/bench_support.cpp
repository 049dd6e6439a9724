// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_support.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "base/files/syscall.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::bench {

namespace {

std::string new_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gpushm-bench-XXXXXX").string();
  return ::mkdtemp(pattern.data());
}

broker_options options_in(const std::string& folder) {
  broker_options options;
  options.socket_path = folder + "/socket";
  options.raise_descriptor_limit = true;
  options.accept_fake_chunks = std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
  return options;
}

}  // namespace

second_process::second_process(const std::function<void(int)>& work) {
  std::array<int, 2> pair{};
  base::checked("bench", {}, "socketpair", [&] {
    return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data());
  });
  socket_ = base::unique_fd(pair[0]);
  const base::unique_fd child_end(pair[1]);
  pid_ = base::checked("bench", {}, "fork", [] { return ::fork(); });
  if (pid_ == 0) {
    socket_.reset();
    try {
      work(child_end.get());
    } catch (const std::exception& why) {
      std::fprintf(stderr, "bench: %s\n", why.what());
    }
    ::_exit(0);
  }
}

second_process::~second_process() {
  socket_.reset();
  static_cast<void>(base::retry([&] { return ::waitpid(pid_, nullptr, 0); }));
}

broker_process::broker_process() : folder_(new_folder()), options_(options_in(folder_)) {
  process_.emplace([options = options_](int socket) {
    const broker running = broker::start(options);
    const std::array<std::byte, 1> ready{};
    static_cast<void>(transport::send_packet(socket, ready, {}));
    std::array<std::byte, 1> none{};
    static_cast<void>(base::retry([&] { return ::recv(socket, none.data(), none.size(), 0); }));
  });
  if (!transport::wait_readable(process_->socket(), std::chrono::seconds(5))) {
    throw std::runtime_error("the broker does not start");
  }
}

broker_process::~broker_process() {
  process_.reset();
  std::filesystem::remove_all(folder_);
}

client broker_process::connect() const {
  return client::connect({.socket_path = options_.socket_path});
}

private_broker::private_broker() : folder_(new_folder()), options_(options_in(folder_)) {
  broker_.emplace(broker::start(options_));
}

private_broker::~private_broker() {
  broker_.reset();
  std::filesystem::remove_all(folder_);
}

client private_broker::connect() const {
  return client::connect({.socket_path = options_.socket_path});
}

double samples::median() const {
  if (values_.empty()) {
    return 0;
  }
  std::vector<double> sorted = values_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

received_message ask(int socket, const wire::message& request) {
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  static_cast<void>(transport::send_packet(socket, wire::encode(request), {}));
  if (!transport::wait_readable(socket, std::chrono::seconds(5))) {
    throw std::runtime_error("the broker does not answer");
  }
  auto got = transport::receive_packet(socket, buffer);
  auto message = wire::decode(got.packet);
  if (!message) {
    throw std::runtime_error("the broker's reply is not a message");
  }
  return {std::move(*message), std::move(got.descriptors)};
}

greeted greeted_socket(const std::string& path) {
  greeted created{transport::connect_packet_socket(path, std::chrono::seconds(5)), {}};
  created.events = std::move(ask(created.get(), {0, wire::hello{}}).descriptors.at(1));
  return created;
}

int gpu_count() {
  try {
    return static_cast<int>(driver::visible_gpus().size());
  } catch (const error&) {
    return 0;
  }
}

std::uint64_t free_gpu_bytes(int ordinal) {
  const auto& gpu = driver::visible_gpus().at(static_cast<std::size_t>(ordinal));
  const auto& cu = driver::cuda_driver::instance();
  const auto context = driver::retain_primary_context(gpu.handle, "bench", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "bench", gpu.id.uuid);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  driver::cuda_driver::check(
      cu->cuMemGetInfo_v2(&free_bytes, &total_bytes), "bench", gpu.id.uuid, "cuMemGetInfo");
  return free_bytes;
}

}  // namespace gpushm::bench
