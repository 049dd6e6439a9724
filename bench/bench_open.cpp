// SPDX-License-Identifier: Apache-2.0
// First open of a segment through the broker, against the raw path with no broker at all: receive
// the descriptor, import, reserve, map, set access, close it. Both in one loop; `ratio` is what
// counts. Nothing is cached: every open ends before the next begins.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "base/size_text.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "bench_support.hpp"
#include "memory/backend.hpp"
#include "transport/packet_socket.hpp"
#include "wire/messages.hpp"

namespace gpushm::bench {
namespace {

/// Hands out the chunk of a segment over a socket pair, as a program without a broker would. The
/// same memory as the segment's: two allocations can differ in how they are paged.
class raw_exporter {
 public:
  raw_exporter(const std::string& broker_socket, const std::string& name) {
    std::array<int, 2> pair{};
    base::checked("bench", {}, "socketpair", [&] {
      return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data());
    });
    near_ = base::unique_fd(pair[0]);
    far_ = base::unique_fd(pair[1]);
    broker_ = greeted_socket(broker_socket);
    auto got = ask(broker_.get(), {1, wire::open{name, 0, 0}});
    chunk_ = std::move(got.descriptors.at(1));
    bytes_ = std::get<wire::opened>(got.message.body).segment.allocated_bytes;
  }

  void send() const {
    const std::array<std::byte, 1> byte{};
    const std::array<int, 1> descriptors{chunk_.get()};
    if (transport::send_packet(near_.get(), byte, descriptors) != transport::send_result::sent) {
      throw std::runtime_error("the descriptor was not sent");
    }
  }
  [[nodiscard]] base::unique_fd receive() const {
    std::array<std::byte, 16> buffer{};
    auto got = transport::receive_packet(far_.get(), buffer);
    return std::move(got.descriptors.at(0));
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
  base::unique_fd broker_;  // its lease
  base::unique_fd chunk_;
  base::unique_fd near_;
  base::unique_fd far_;
};

void first_open(benchmark::State& state,
                const std::string& home,
                const std::string& user,
                std::uint64_t size_bytes) {
  const auto home_backend = memory::backend_for_create(home, false);
  const auto user_backend =
      memory::backend_for_open(home_backend->kind(), home_backend->device(), user);
  private_broker broker;
  client producer = broker.connect();
  client consumer = broker.connect();
  segment shared = producer.create("bench", {.size_bytes = size_bytes, .device = home});
  shared.publish();
  const raw_exporter exporter(broker.socket_path(), "bench");
  const open_options options{.access = access::read_write, .device = user};

  samples raw;
  samples through_broker;
  const auto open_raw = [&] {
    std::unique_ptr<memory::region> region;
    exporter.send();
    raw.time([&] {
      auto importer = user_backend->begin_import({"raw", exporter.bytes(), access::read_write});
      importer->add(exporter.receive(), exporter.bytes());
      region = importer->finish();
    });
  };
  const auto open_through_broker = [&] {
    segment opened;
    through_broker.time([&] { opened = consumer.open("bench", options); });
  };
  bool raw_first = false;
  for (auto _ : state) {
    raw_first = !raw_first;  // neither is always the one after the other
    if (raw_first) {
      open_raw();
    }
    open_through_broker();
    if (!raw_first) {
      open_raw();
    }
  }
  state.counters["raw_us"] = raw.median();
  state.counters["gpushm_us"] = through_broker.median();
  state.counters["ratio"] = through_broker.median() / raw.median();
}

constexpr std::array<std::uint64_t, 3> sizes{2UL << 20U, 1UL << 30U, 64UL << 30U};

void add(const std::string& home, const std::string& user, const std::string& label) {
  for (const std::uint64_t size : sizes) {
    const bool fits =
        home == "host" ? size <= (1UL << 30U) : size + (1UL << 30U) < free_gpu_bytes(0);
    if (fits) {
      benchmark::RegisterBenchmark(("first_open/" + label + "/" + base::size_text(size)).c_str(),
                                   [=](benchmark::State& s) { first_open(s, home, user, size); })
          ->Iterations(size <= (2UL << 20U) ? 1000 : 101)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  gpushm::bench::add("host", "", "host");
  if (gpushm::bench::gpu_count() > 0) {
    gpushm::bench::add("0", "0", "same_gpu");
  }
  if (gpushm::bench::gpu_count() > 1) {
    gpushm::bench::add("0", "1", "peer_gpu");
  }
  benchmark::RunSpecifiedBenchmarks();
}
