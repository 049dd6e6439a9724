// SPDX-License-Identifier: Apache-2.0
// First open of a segment through a broker in another process, compared to the raw path without a
// broker: receive the descriptor, import, reserve, map, set access, close it. `ratio` is against
// that; `ratio_requested` is against the same path preceded by a request to another process for the
// descriptor. All run in one loop, with `idle` between two opens. Nothing is cached: every open
// ends before the next begins. The rows `prefetched_open` are of opens whose lease and descriptors
// were prefetched, compared to the first raw path.
#include <benchmark/benchmark.h>
#include <fcntl.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "base/text/size_text.hpp"
#include "bench/bench_support.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::bench {
namespace {

/// Exports the chunk of a segment as a program without a broker would: another process answers each
/// request with the descriptor. It uses the segment's own memory, since two allocations can differ
/// in how they are paged.
class raw_exporter {
 public:
  raw_exporter()
      : process_([](int socket) {
          std::array<std::byte, 16> buffer{};
          base::unique_fd chunk;
          for (;;) {
            static_cast<void>(transport::wait_readable(socket, std::chrono::hours(1)));
            auto got = transport::receive_packet(socket, buffer);
            if (got.status != transport::receive_status::packet) {
              return;
            }
            if (!got.descriptors.empty()) {
              chunk = std::move(got.descriptors.front());
            } else {
              const std::array<int, 1> descriptors{chunk.get()};
              static_cast<void>(transport::send_packet(socket, one_byte, descriptors));
            }
          }
        }) {}

  /// Exports this segment from now on.
  void export_segment(const std::string& broker_socket, const std::string& name) {
    lease_ = greeted_socket(broker_socket);
    auto got = ask(lease_.get(), {1, wire::open{name, 0, 0}});
    bytes_ = std::get<wire::opened>(got.message.body).segment.allocated_bytes;
    const std::array<int, 1> descriptors{got.descriptors.at(0).get()};
    send(descriptors);
  }
  /// Gives up the lease and the descriptor of the segment, which keep its memory.
  void end() {
    const base::unique_fd other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const std::array<int, 1> descriptors{other.get()};
    send(descriptors);
    lease_ = {};
  }
  void request() const { send({}); }
  [[nodiscard]] base::unique_fd receive() const {
    std::array<std::byte, 16> buffer{};
    if (!transport::wait_readable(process_.socket(), std::chrono::seconds(5))) {
      throw std::runtime_error("the other process does not answer");
    }
    auto got = transport::receive_packet(process_.socket(), buffer);
    return std::move(got.descriptors.at(0));
  }
  /// Blocks until its answer can be received.
  void wait() const {
    static_cast<void>(transport::wait_readable(process_.socket(), std::chrono::seconds(5)));
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::array<std::byte, 1> one_byte{};
  void send(std::span<const int> descriptors) const {
    if (transport::send_packet(process_.socket(), one_byte, descriptors) !=
        transport::send_result::sent) {
      throw std::runtime_error("the request was not sent");
    }
  }

  second_process process_;
  std::uint64_t bytes_ = 0;
  greeted lease_;
};

/// The single chunk that the raw exporter sends.
class received_chunk final : public memory::chunk_source {
 public:
  explicit received_chunk(const raw_exporter& exporter) : from_(exporter) {}
  [[nodiscard]] std::optional<chunk> next() override {
    if (std::exchange(received_, true)) {
      return std::nullopt;
    }
    return chunk{from_.receive(), from_.bytes()};
  }

 private:
  const raw_exporter& from_;
  bool received_ = false;
};

/// Both are forked before this process has threads, and serve all benchmarks.
struct processes {
  broker_process broker;
  raw_exporter exporter;
};

/// Whether a segment of this size fits on its GPU once the memory of the previous ones is freed:
/// the broker closes their descriptors later. Skips the benchmark if not.
bool has_room(benchmark::State& state, const std::string& home, std::uint64_t size_bytes) {
  constexpr std::chrono::seconds longest_wait{20};
  constexpr std::uint64_t reserve_bytes = 1UL << 30U;
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  while (home != "host" && free_gpu_bytes(0) < size_bytes + reserve_bytes) {
    if (std::chrono::steady_clock::now() > deadline) {
      state.SkipWithError("the segment does not fit on this GPU");
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void first_open(benchmark::State& state,
                processes& others,
                std::chrono::microseconds idle,
                const std::string& home,
                const std::string& user,
                std::uint64_t size_bytes) {
  if (!has_room(state, home, size_bytes)) {
    return;
  }
  const auto home_backend = memory::backend_for_create(home, false);
  const auto user_backend =
      memory::backend_for_open(home_backend->kind(), home_backend->device(), user);
  client producer = others.broker.connect();
  client consumer = others.broker.connect();
  static int created = 0;
  const std::string name = "bench" + std::to_string(++created);
  segment shared = producer.create(name, {.size_bytes = size_bytes, .device = home});
  shared.publish();
  raw_exporter& exporter = others.exporter;
  exporter.export_segment(others.broker.socket_path(), name);
  const open_options options{.access = access::read_write, .device = user};

  samples raw;
  samples requested;
  samples through_broker;
  const auto import = [&] {
    received_chunk chunk(exporter);
    return user_backend->import({"raw", exporter.bytes(), access::read_write}, chunk);
  };
  const auto pause = [&] {
    if (idle.count() != 0) {
      std::this_thread::sleep_for(idle);
    }
  };
  const auto open_raw = [&] {
    std::unique_ptr<memory::region> region;
    exporter.request();
    exporter.wait();
    pause();
    raw.time([&] { region = import(); });
  };
  const auto open_requested = [&] {
    std::unique_ptr<memory::region> region;
    pause();
    requested.time([&] {
      exporter.request();
      region = import();
    });
  };
  const auto open_through_broker = [&] {
    segment opened;
    pause();
    through_broker.time([&] { opened = consumer.open(name, options); });
  };
  const std::array<std::function<void()>, 3> ways{open_raw, open_requested, open_through_broker};
  std::size_t first = 0;
  for (auto _ : state) {
    ++first;
    const std::size_t step = first % 2 == 0 ? 1 : ways.size() - 1;  // varies their order
    for (std::size_t i = 0; i < ways.size(); ++i) {
      ways.at((first + i * step) % ways.size())();
    }
  }
  exporter.end();
  state.counters["raw_us"] = raw.median();
  state.counters["requested_us"] = requested.median();
  state.counters["gpushm_us"] = through_broker.median();
  state.counters["ratio"] = through_broker.median() / raw.median();
  state.counters["ratio_requested"] = through_broker.median() / requested.median();
}

void prefetched_open(benchmark::State& state,
                     processes& others,
                     std::chrono::microseconds idle,
                     const std::string& home,
                     const std::string& user,
                     std::uint64_t size_bytes) {
  if (!has_room(state, home, size_bytes)) {
    return;
  }
  const auto home_backend = memory::backend_for_create(home, false);
  const auto user_backend =
      memory::backend_for_open(home_backend->kind(), home_backend->device(), user);
  client producer = others.broker.connect();
  client consumer = others.broker.connect();
  static int created = 0;
  const std::string name = "prefetched" + std::to_string(++created);
  segment shared = producer.create(
      name, {.size_bytes = size_bytes, .device = home, .lifetime = lifetime::persistent});
  shared.publish();
  raw_exporter& exporter = others.exporter;
  exporter.export_segment(others.broker.socket_path(), name);
  const open_options options{.access = access::read_write, .device = user};

  samples raw;
  samples prefetched;
  const auto pause = [&] {
    if (idle.count() != 0) {
      std::this_thread::sleep_for(idle);
    }
  };
  const auto open_raw = [&] {
    std::unique_ptr<memory::region> region;
    exporter.request();
    exporter.wait();
    pause();
    raw.time([&] {
      received_chunk chunk(exporter);
      region = user_backend->import({"raw", exporter.bytes(), access::read_write}, chunk);
    });
  };
  const auto open_prefetched = [&] {
    if (consumer.prefetch(name) != 1) {
      throw std::runtime_error("the segment was not prefetched");
    }
    pause();
    {
      segment opened;
      prefetched.time([&] { opened = consumer.open(name, options); });
    }
    consumer.trim();
  };
  bool raw_first = false;
  for (auto _ : state) {
    raw_first = !raw_first;
    for (const bool is_raw : {raw_first, !raw_first}) {
      if (is_raw) {
        open_raw();
      } else {
        open_prefetched();
      }
    }
  }
  exporter.end();
  producer.remove(name);
  state.counters["raw_us"] = raw.median();
  state.counters["gpushm_us"] = prefetched.median();
  state.counters["ratio"] = prefetched.median() / raw.median();
}

constexpr std::array<std::uint64_t, 3> sizes{2UL << 20U, 1UL << 30U, 64UL << 30U};

constexpr std::array<std::chrono::microseconds, 2> idle_times{std::chrono::microseconds(0),
                                                              std::chrono::microseconds(1000)};

void add(processes& others,
         const std::string& home,
         const std::string& user,
         const std::string& label) {
  for (const std::uint64_t size : sizes) {
    const bool fits =
        home == "host" ? size <= (1UL << 30U) : size + (1UL << 30U) < free_gpu_bytes(0);
    for (const auto idle : idle_times) {
      if (!fits) {
        continue;
      }
      const std::string name = "/" + label + "/" + base::size_text(size) +
                               "/idle:" + std::to_string(idle.count()) + "us";
      const auto add_one = [&](std::string kind, auto measure) {
        kind += name;
        benchmark::RegisterBenchmark(
            kind.c_str(),
            [=, &others](benchmark::State& s) { measure(s, others, idle, home, user, size); })
            ->Iterations(size <= (2UL << 20U) ? 1000 : 101)
            ->Unit(benchmark::kMicrosecond);
      };
      add_one("first_open", first_open);
      add_one("prefetched_open", prefetched_open);
    }
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  gpushm::bench::processes others;
  benchmark::Initialize(&argc, argv);
  gpushm::bench::add(others, "host", "", "host");
  if (gpushm::bench::gpu_count() > 0) {
    gpushm::bench::add(others, "0", "0", "same_gpu");
  }
  if (gpushm::bench::gpu_count() > 1) {
    gpushm::bench::add(others, "0", "1", "peer_gpu");
  }
  benchmark::RunSpecifiedBenchmarks();
}
