// SPDX-License-Identifier: Apache-2.0
// How soon waiters know that signalers have died: many processes that signal a timeline each are
// killed at once; a thread waits for each. From the moment at which the kernel reports the end of a
// process (its pidfd is readable) to the return of the wait for its timeline.
//
//   gpushm_ends [PROCESSES [gpu [MIB]]]   prints a line of JSON; gpu: each has a context, has
//                                         allocated MIB there, and has signaled from a stream of
//                                         GPU 0
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

std::string name_of(std::size_t index) {
  return "t" + std::to_string(index);
}

struct gpu_use {
  bool is_used = false;
  std::size_t mib = 0;  ///< of each process
};

/// Runs in the child: signals, and waits for its death.
[[noreturn]] void signal_and_wait(const std::string& broker,
                                  std::size_t index,
                                  const gpu_use& gpu) {
  try {
    const client own = client::connect({.socket_path = broker});
    timeline mine = timeline::create(own, name_of(index));
    if (gpu.is_used) {
      const auto& cu = driver::cuda_driver::instance();
      cuda::CUstream stream = nullptr;
      driver::cuda_driver::check(cu->cuCtxSetCurrent(driver::primary_context(
                                     driver::find_device("0").handle, "bench", {})),
                                 "bench",
                                 {},
                                 "cuCtxSetCurrent");
      driver::cuda_driver::check(
          cu->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), "bench", {}, "cuStreamCreate");
      if (gpu.mib != 0) {
        cuda::CUdeviceptr memory = 0;
        driver::cuda_driver::check(
            cu->cuMemAlloc_v2(&memory, gpu.mib << 20U), "bench", {}, "cuMemAlloc");
      }
      mine.signal(stream, 1);
    } else {
      mine.signal(1);
    }
    for (;;) {
      ::pause();
    }
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_ends: %s\n", why.what());
    ::_exit(1);
  }
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(part * static_cast<double>(values.size() - 1)));
}

struct watched {
  pid_t pid = -1;
  base::unique_fd pidfd;
  timeline seen;
  steady_clock::time_point gone;
  steady_clock::time_point known;
  std::jthread waiter;
};

int run(std::size_t count, const gpu_use& gpu) {
  const broker_process broker;
  std::vector<watched> all(count);
  for (std::size_t i = 0; i != count; ++i) {
    all[i].pid = ::fork();
    if (all[i].pid == 0) {
      signal_and_wait(broker.socket_path(), i, gpu);
    }
    all[i].pidfd = base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, all[i].pid, 0)));
  }
  const client own = broker.connect();
  for (std::size_t i = 0; i != count; ++i) {
    watched& each = all[i];
    each.seen = timeline::open(own, name_of(i), std::chrono::seconds(120));
    if (!each.seen.wait(1, std::chrono::seconds(120))) {
      return 1;
    }
  }
  for (watched& each : all) {
    each.waiter = std::jthread([&each] {
      try {
        static_cast<void>(each.seen.wait(2, std::chrono::seconds(120)));
      } catch (const error&) {
        each.known = steady_clock::now();
      }
    });
  }
  const auto killed = steady_clock::now();
  for (const watched& each : all) {
    gpushm::base::signal_process(each.pid, SIGKILL);
  }
  std::vector<pollfd> files;
  for (const watched& each : all) {
    files.push_back({each.pidfd.get(), POLLIN, 0});
  }
  for (std::size_t left = count; left != 0;) {
    static_cast<void>(::poll(files.data(), files.size(), 1'000));
    for (std::size_t i = 0; i != count; ++i) {
      if (files[i].fd >= 0 && (files[i].revents & POLLIN) != 0) {
        all[i].gone = steady_clock::now();
        files[i].fd = -1;
        --left;
      }
    }
  }
  std::vector<double> to_fence;
  std::vector<double> to_end;
  for (watched& each : all) {
    each.waiter.join();
    ::waitpid(each.pid, nullptr, 0);
    to_fence.push_back(std::chrono::duration<double, std::milli>(each.gone - killed).count());
    to_end.push_back(std::chrono::duration<double, std::milli>(each.known - each.gone).count());
  }
  std::printf(
      "{\"processes\": %zu, \"gpu\": %s, \"mib\": %zu, \"kill_to_pidfd_ms_p50\": %.2f, "
      "\"kill_to_pidfd_ms_max\": %.2f, \"pidfd_to_end_ms_p50\": %.2f, "
      "\"pidfd_to_end_ms_p99\": %.2f, \"pidfd_to_end_ms_max\": %.2f}\n",
      count,
      gpu.is_used ? "true" : "false",
      gpu.mib,
      percentile(to_fence, 0.5),
      percentile(to_fence, 1),
      percentile(to_end, 0.5),
      percentile(to_end, 0.99),
      percentile(to_end, 1));
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    return gpushm::bench::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64,
                              {argc > 2 && std::string_view(argv[2]) == "gpu",
                               argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0});
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_ends: %s\n", why.what());
    return 1;
  }
}
