// SPDX-License-Identifier: Apache-2.0
#include "bench_support.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "driver/cuda.hpp"
#include "driver/devices.hpp"
#include "driver/owners.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm::bench {

private_broker::private_broker() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gpushm-bench-XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  options_.socket_path = folder_ + "/socket";
  options_.raise_descriptor_limit = true;
  options_.accept_fake_chunks = std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
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
    throw std::runtime_error("the broker's answer is no message");
  }
  return {std::move(*message), std::move(got.descriptors)};
}

base::unique_fd greeted_socket(const std::string& path) {
  auto socket = transport::connect_packet_socket(path, std::chrono::seconds(5));
  static_cast<void>(ask(socket.get(), {0, wire::hello{}}));
  return socket;
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
