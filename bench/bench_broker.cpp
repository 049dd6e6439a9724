// SPDX-License-Identifier: Apache-2.0
// How many open+release rounds a second the broker's single thread handles, compared to a bare
// epoll loop with the same system calls: it checks whether a packet carries descriptors, receives
// it, answers it with one descriptor, and does the same, without an answer, for another packet.
// Each client keeps several opens in flight, so that the server is the bottleneck. A third result,
// heap per segment, is the allocator's own count.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <atomic>
#include <deque>
#include <thread>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "bench/bench_support.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/reported_call.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::bench {
namespace {

constexpr int connections = 8;
constexpr int opens_under_way = 8;
constexpr int rounds_an_iteration = 20'000;

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// Runs `request` and `release` rounds over several sockets, on one thread.
class load {
 public:
  load(std::vector<greeted> sockets, std::vector<std::byte> request, std::vector<std::byte> release)
      : sockets_(std::move(sockets)),
        request_(std::move(request)),
        release_(std::move(release)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        buffer_(wire::max_packet_bytes) {
    for (const auto& socket : sockets_) {
      epoll_event interest{EPOLLIN, {.fd = socket.get()}};
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &interest);
    }
  }

  void run(int rounds) {
    int started = 0;
    for (int i = 0; i < opens_under_way; ++i) {
      for (const auto& socket : sockets_) {
        send(socket.get(), request_);
        ++started;
      }
    }
    for (int done = 0; done < started;) {
      std::array<epoll_event, connections> events{};
      const int count = ::epoll_wait(epoll_.get(), events.data(), connections, 5000);
      if (count <= 0) {
        throw std::runtime_error("the server stopped answering");
      }
      for (int i = 0; i < count; ++i) {
        const int socket = events.at(static_cast<std::size_t>(i)).data.fd;
        while (transport::receive_packet(socket, buffer_).status ==
               transport::receive_status::packet) {
          ++done;
          send(socket, release_);
          if (started < rounds) {
            send(socket, request_);
            ++started;
          }
        }
      }
    }
  }

 private:
  static void send(int socket, std::span<const std::byte> packet) {
    while (transport::send_packet(socket, packet, {}) == transport::send_result::would_block) {
      static_cast<void>(transport::wait_writable(socket, std::chrono::seconds(5)));
    }
  }

  std::vector<greeted> sockets_;
  std::vector<std::byte> request_;
  std::vector<std::byte> release_;
  base::unique_fd epoll_;
  std::vector<std::byte> buffer_;
};

/// The lower bound: answers every odd packet of a connection with `answer` and a descriptor.
class bare_loop {
 public:
  explicit bare_loop(std::vector<std::byte> answer) : answer_(std::move(answer)) {
    for (int i = 0; i < connections; ++i) {
      std::array<int, 2> pair{};
      base::checked("bench", {}, "socketpair", [&] {
        return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data());
      });
      clients_.emplace_back(pair[0]);
      servers_.emplace_back(pair[1]);
    }
    thread_ = std::jthread([this] { serve(); });
  }
  bare_loop(const bare_loop&) = delete;
  bare_loop& operator=(const bare_loop&) = delete;
  ~bare_loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
  }
  [[nodiscard]] std::vector<greeted> take_clients() {
    std::vector<greeted> all;
    for (base::unique_fd& each : clients_) {
      all.push_back({std::move(each)});
    }
    return all;
  }
  [[nodiscard]] double cpu_seconds() {
    clockid_t clock{};
    ::pthread_getcpuclockid(thread_.native_handle(), &clock);
    return seconds(clock);
  }

 private:
  void serve() {
    const base::unique_fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    const base::unique_fd file(::memfd_create("bench", MFD_CLOEXEC));
    const std::array<int, 1> descriptors{file.get()};
    std::vector<std::byte> buffer(wire::max_packet_bytes);
    for (const auto& socket : servers_) {
      epoll_event interest{EPOLLIN, {.fd = socket.get()}};
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &interest);
    }
    epoll_event stop{EPOLLIN, {.fd = stop_.get()}};
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop_.get(), &stop);
    for (;;) {
      std::array<epoll_event, connections + 1> events{};
      const int count = ::epoll_wait(epoll.get(), events.data(), connections + 1, -1);
      for (int i = 0; i < count; ++i) {
        const int socket = events.at(static_cast<std::size_t>(i)).data.fd;
        if (socket == stop_.get()) {
          return;
        }
        for (;;) {  // the system calls of a broker
          const auto got = transport::peek_bytes(socket, buffer);
          if (got.status != transport::receive_status::packet) {
            break;
          }
          transport::reported_call call;
          if (got.packet.size() == 1) {  // a request; releases have another size
            static_cast<void>(transport::send_reported(call, 0, socket, answer_, descriptors));
          }
          static_cast<void>(transport::remove_reported(call, 0, socket));
        }
      }
    }
  }

  std::vector<std::byte> answer_;
  base::unique_fd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::vector<base::unique_fd> clients_;
  std::vector<base::unique_fd> servers_;
  std::jthread thread_;
};

/// CPU time of this process without that of the calling thread, which is the server thread's.
double other_threads_cpu() {
  return seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(CLOCK_THREAD_CPUTIME_ID);
}

void open_release(benchmark::State& state) {
  private_broker broker;
  client producer = broker.connect();
  segment shared = producer.create("bench", {.size_bytes = 4096, .device = "host"});
  shared.publish();

  std::vector<greeted> sockets;
  for (int i = 0; i < connections; ++i) {
    sockets.push_back(greeted_socket(broker.socket_path()));
  }
  const auto request = wire::encode({1, wire::open{"bench", 0, 0}});
  const auto release = wire::encode({0, wire::release{shared.generation(), 1}});
  load on_broker(std::move(sockets), request, release);

  bare_loop bare(std::vector<std::byte>(300));
  load on_bare(bare.take_clients(), std::vector<std::byte>(1), std::vector<std::byte>(2));

  double broker_wall = 0;
  double broker_cpu = 0;
  double bare_wall = 0;
  double bare_cpu = 0;
  for (auto _ : state) {
    const double wall = seconds(CLOCK_MONOTONIC);
    const double cpu = other_threads_cpu();
    on_broker.run(rounds_an_iteration);
    broker_wall += seconds(CLOCK_MONOTONIC) - wall;
    broker_cpu += other_threads_cpu() - cpu;
    const double bare_start = seconds(CLOCK_MONOTONIC);
    const double bare_cpu_start = bare.cpu_seconds();
    on_bare.run(rounds_an_iteration);
    bare_wall += seconds(CLOCK_MONOTONIC) - bare_start;
    bare_cpu += bare.cpu_seconds() - bare_cpu_start;
  }
  const double rounds = static_cast<double>(state.iterations()) * rounds_an_iteration;
  state.counters["rounds_per_s"] = rounds / broker_wall;
  state.counters["rounds_per_cpu_s"] = rounds / broker_cpu;
  state.counters["bare_rounds_per_s"] = rounds / bare_wall;
  state.counters["bare_rounds_per_cpu_s"] = rounds / bare_cpu;
  state.counters["ratio"] = bare_wall / broker_wall;
}

void heap_of_a_segment(benchmark::State& state) {
  constexpr int count = 4000;
  for (auto _ : state) {
    private_broker broker;
    // Persistent, without the creator: the remaining heap is the broker's.
    const auto create = [&](int first, int last) {
      client producer = broker.connect();
      for (int i = first; i < last; ++i) {
        segment created = producer.create(
            "weights/layer/" + std::to_string(i),
            {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent});
        created.publish();
      }
    };
    create(-100, 0);
    const auto before = ::mallinfo2().uordblks;
    create(0, count);
    state.counters["heap_bytes_per_segment"] =
        static_cast<double>(::mallinfo2().uordblks - before) / count;
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("broker/open_release", gpushm::bench::open_release)->Iterations(10);
  benchmark::RegisterBenchmark("broker/heap", gpushm::bench::heap_of_a_segment)->Iterations(1);
  benchmark::RunSpecifiedBenchmarks();
}
