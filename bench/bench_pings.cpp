// SPDX-License-Identifier: Apache-2.0
// What timelines cost: round trips of two processes' streams (and CPUs) with them, with the
// driver's calls on a page of the same kind, with counters in memory of a legacy handle, and with
// host synchronisation and a message. All in one run, in turn; the best of several repetitions of
// each.
//
//   gpushm_pings [ROUNDS [PEER_GPU]]     prints a line of JSON for each
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t page_bytes = 4'096;
constexpr int repetitions = 5;

const driver::cuda_driver& cu() {
  return driver::cuda_driver::instance();
}
void must(cuda::CUresult result) {
  driver::cuda_driver::check(result, "bench", {}, "the driver");
}

/// A page as a broker makes it: one descriptor for its signaler, one for everybody else.
struct page_files {
  base::unique_fd writable;
  base::unique_fd readable;
  page_files() : writable(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    const std::string path = "/proc/self/fd/" + std::to_string(writable.get());
    if (::ftruncate(writable.get(), page_bytes) != 0 || ::fchmod(writable.get(), 0600) != 0) {
      throw std::runtime_error("no page");
    }
    readable = base::unique_fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
};

/// Words that this process signals and waits for, by the driver's calls.
struct raw_words {
  cuda::CUdeviceptr mine = 0;
  cuda::CUdeviceptr other = 0;
};

/// One of the two processes.
class side {
 public:
  side(bool first, int socket, const std::string& broker, int gpu, const page_files* pages)
      : first_(first), socket_(socket) {
    const auto& device = driver::find_device(std::to_string(gpu));
    must(cu()->cuCtxSetCurrent(driver::primary_context(device.handle, "bench", {})));
    must(cu()->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING));
    must(cu()->cuMemAlloc_v2(&scratch_, page_bytes));
    client_.emplace(client::connect({.socket_path = broker}));
    mine_ = timeline::create(*client_, first ? "a" : "b");
    other_ = timeline::open(*client_, first ? "b" : "a", std::chrono::seconds(20));
    map_pages(pages);
    map_legacy();
  }

  /// Returns the time of a round trip, in microseconds. Both processes call it.
  double once(std::uint64_t rounds, void (side::*trip)(std::uint64_t)) {
    meet();
    const auto begin = steady_clock::now();
    for (std::uint64_t round = 0; round != rounds; ++round) {
      (this->*trip)(++value_);
    }
    must(cu()->cuStreamSynchronize(stream_));
    const std::chrono::duration<double, std::micro> took = steady_clock::now() - begin;
    meet();
    return took.count() / static_cast<double>(rounds);
  }

  // ---- round trips: the first one signals and waits, the second one waits and signals ----

  void raw(std::uint64_t value) { by_driver(raw_, value); }
  void legacy(std::uint64_t value) { by_driver(legacy_, value); }
  void timelines(std::uint64_t value) {
    if (first_) {
      mine_.signal(stream_, value);
      other_.wait(stream_, value);
    } else {
      other_.wait(stream_, value);
      mine_.signal(stream_, value);
    }
  }
  /// Work of a stream, which the host waits for before it tells the other process.
  void host(std::uint64_t value) {
    if (!first_) {
      take();
    }
    must(cu()->cuMemsetD8Async(scratch_, static_cast<unsigned char>(value), page_bytes, stream_));
    must(cu()->cuStreamSynchronize(stream_));
    give();
    if (first_) {
      take();
    }
  }
  /// The same work, ordered by timelines.
  void work(std::uint64_t value) {
    if (!first_) {
      other_.wait(stream_, value);
    }
    must(cu()->cuMemsetD8Async(scratch_, static_cast<unsigned char>(value), page_bytes, stream_));
    mine_.signal(stream_, value);
    if (first_) {
      other_.wait(stream_, value);
    }
  }
  /// GPU to CPU to GPU: the second process has no stream.
  void raw_cpu(std::uint64_t value) {
    if (first_) {
      by_driver(raw_, value);
      return;
    }
    while (static_cast<std::int64_t>(raw_read_->load(std::memory_order_acquire) - value) < 0) {
    }
    raw_written_->store(value, std::memory_order_release);
  }
  void timelines_cpu(std::uint64_t value) {
    if (first_) {
      timelines(value);
      return;
    }
    if (!other_.wait(value, std::chrono::seconds(60))) {
      throw std::runtime_error("no signal in 60 s");
    }
    mine_.signal(value);
  }
  /// CPU to CPU.
  void cpus(std::uint64_t value) {
    if (first_) {
      mine_.signal(value);
    }
    if (!other_.wait(value, std::chrono::seconds(60))) {
      throw std::runtime_error("no signal in 60 s");
    }
    if (!first_) {
      mine_.signal(value);
    }
  }

 private:
  void by_driver(const raw_words& words, std::uint64_t value) {
    if (first_) {
      must(cu()->cuStreamWriteValue64_v2(stream_, words.mine, value, 0));
    }
    must(cu()->cuStreamWaitValue64_v2(stream_, words.other, value, cuda::CU_STREAM_WAIT_VALUE_GEQ));
    if (!first_) {
      must(cu()->cuStreamWriteValue64_v2(stream_, words.mine, value, 0));
    }
  }
  void give() {
    const char byte = 0;
    if (::send(socket_, &byte, 1, MSG_NOSIGNAL) != 1) {
      throw std::runtime_error("the other process has ended");
    }
  }
  void take() {
    char byte = 0;
    if (::recv(socket_, &byte, 1, 0) != 1) {
      throw std::runtime_error("the other process has ended");
    }
  }
  void meet() {
    give();
    take();
  }
  std::atomic<std::uint64_t>* map(int file, bool writable, cuda::CUdeviceptr& address) {
    mappings_.push_back(base::map_file("bench", file, page_bytes, writable));
    void* const at = mappings_.back().get().address;
    const unsigned int flags = cuda::memhostregister_portable | cuda::memhostregister_devicemap |
                               (writable ? 0 : cuda::memhostregister_read_only);
    must(cu()->cuMemHostRegister_v2(at, page_bytes, flags));
    must(cu()->cuMemHostGetDevicePointer_v2(&address, at, 0));
    return static_cast<std::atomic<std::uint64_t>*>(at);
  }
  void map_pages(const page_files* pages) {
    raw_written_ = map(pages[first_ ? 0 : 1].writable.get(), true, raw_.mine);
    raw_read_ = map(pages[first_ ? 1 : 0].readable.get(), false, raw_.other);
  }
  void map_legacy() {
    must(cu()->cuMemAlloc_v2(&legacy_.mine, page_bytes));
    must(cu()->cuMemsetD8_v2(legacy_.mine, 0, page_bytes));
    cuda::CUipcMemHandle handle{};
    must(cu()->cuIpcGetMemHandle(&handle, legacy_.mine));
    static_cast<void>(!::send(socket_, &handle, sizeof handle, MSG_NOSIGNAL));
    if (::recv(socket_, &handle, sizeof handle, 0) != sizeof handle) {
      throw std::runtime_error("the other process has ended");
    }
    must(cu()->cuIpcOpenMemHandle_v2(
        &legacy_.other, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }

  const bool first_;
  const int socket_;
  std::uint64_t value_ = 0;
  cuda::CUstream stream_ = nullptr;
  cuda::CUdeviceptr scratch_ = 0;
  std::optional<client> client_;
  timeline mine_;
  timeline other_;
  std::vector<base::unique_mapping> mappings_;
  raw_words raw_;
  raw_words legacy_;
  std::atomic<std::uint64_t>* raw_written_ = nullptr;
  const std::atomic<std::uint64_t>* raw_read_ = nullptr;
};

struct kind {
  const char* name;
  void (side::*trip)(std::uint64_t);
  std::uint64_t share;  ///< of the rounds: one in `share`
};
constexpr std::array<kind, 8> kinds{{{"raw", &side::raw, 1},
                                     {"timelines", &side::timelines, 1},
                                     {"legacy", &side::legacy, 1},
                                     {"work", &side::work, 1},
                                     {"host", &side::host, 10},
                                     {"raw_cpu", &side::raw_cpu, 1},
                                     {"timelines_cpu", &side::timelines_cpu, 1},
                                     {"cpus", &side::cpus, 1}}};

/// Best times by kind; each kind is measured in turn, several times.
std::map<std::string, double> measure_all(side& here, std::uint64_t rounds) {
  std::map<std::string, double> best;
  for (int repetition = 0; repetition != repetitions; ++repetition) {
    for (const kind& each : kinds) {
      const double took = here.once(std::max<std::uint64_t>(1, rounds / each.share), each.trip);
      double& known = best.try_emplace(each.name, took).first->second;
      known = std::min(known, took);
    }
  }
  return best;
}

int run(std::uint64_t rounds, int peer_gpu) {
  const std::array<page_files, 2> pages;
  const broker_process broker;
  const second_process other([&](int socket) {
    side there(false, socket, broker.socket_path(), peer_gpu, pages.data());
    static_cast<void>(measure_all(there, rounds));
  });
  side here(true, other.socket(), broker.socket_path(), 0, pages.data());
  auto us = measure_all(here, rounds);
  std::printf(
      "{\"rounds\": %llu, \"peer_gpu\": %d", static_cast<unsigned long long>(rounds), peer_gpu);
  for (const kind& each : kinds) {
    std::printf(", \"%s_us\": %.2f", each.name, us[each.name]);
  }
  std::printf(
      ", \"timelines_to_raw\": %.3f, \"timelines_to_legacy\": %.3f, \"host_to_work\": %.1f, "
      "\"timelines_cpu_to_raw_cpu\": %.3f}\n",
      us["timelines"] / us["raw"],
      us["timelines"] / us["legacy"],
      us["host"] / us["work"],
      us["timelines_cpu"] / us["raw_cpu"]);
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    return gpushm::bench::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000,
                              argc > 2 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_pings: %s\n", why.what());
    return 1;
  }
}
