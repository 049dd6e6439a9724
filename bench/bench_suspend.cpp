// SPDX-License-Identifier: Apache-2.0
// How long a segment takes to step aside and to come back, and how much memory that frees.
//
//   gpushm_suspend [GIB [DEVICE [REPETITIONS]]]   prints JSON
//
// GIB: 10. DEVICE: "0" (if there is a GPU), "host". REPETITIONS: 10 of each mode. `suspend_us` and
// `resume_us` are medians of the calls, `down_us` of the time from the call of suspend until resume
// has returned. `freed_bytes`: of the GPU's memory, while suspended; of the host there is no exact
// figure (null). A suspend with "host" copies the contents, and the resume copies them back.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bench_support.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t checked_bytes = 4'096;

double microseconds(steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

/// The broker closes its descriptors on a thread of its own: waits at most a second for that.
std::uint64_t freed_since(const segment& segment, std::uint64_t free_before) {
  const auto end = steady_clock::now() + std::chrono::seconds(1);
  std::uint64_t now = free_gpu_bytes(segment.ordinal());
  while (now < free_before + segment.size_bytes() && steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    now = free_gpu_bytes(segment.ordinal());
  }
  return now < free_before ? 0 : now - free_before;
}

void check_contents(const segment& segment, std::byte expected) {
  std::array<std::byte, checked_bytes> last{};
  segment.read(segment.size_bytes() - last.size(), last);
  for (const std::byte each : last) {
    if (each != expected) {
      throw std::runtime_error("the contents have changed");
    }
  }
}

std::string measure(segment& segment, suspend_mode mode, int repetitions) {
  samples suspends;
  samples resumes;
  samples down;
  std::uint64_t freed = 0;
  const bool on_gpu = segment.ordinal() >= 0;
  for (int i = 0; i != repetitions; ++i) {
    const std::uint64_t free_before = on_gpu ? free_gpu_bytes(segment.ordinal()) : 0;
    const auto begin = steady_clock::now();
    segment.suspend(mode);
    const auto suspended = steady_clock::now();
    if (on_gpu && mode != suspend_mode::keep) {
      freed = freed_since(segment, free_before);
    }
    const auto resuming = steady_clock::now();
    segment.resume();
    const auto end = steady_clock::now();
    suspends.add(microseconds(suspended - begin));
    resumes.add(microseconds(end - resuming));
    down.add(microseconds((suspended - begin) + (end - resuming)));
    if (mode == suspend_mode::discard) {
      segment.fill(std::byte{7});
      segment.publish();
    }
    check_contents(segment, std::byte{7});
  }
  std::array<char, 256> text{};
  std::snprintf(text.data(),
                text.size(),
                R"("%s": {"suspend_us": %.1f, "resume_us": %.1f, "down_us": %.1f, )",
                std::string(to_string(mode)).c_str(),
                suspends.median(),
                resumes.median(),
                down.median());
  return text.data() + ("\"freed_bytes\": " + (on_gpu ? std::to_string(freed) : "null") + "}");
}

int run(const broker_process& broker,
        std::uint64_t size_bytes,
        std::string device,
        int repetitions) {
  client client = broker.connect();
  segment segment =
      client.create("bench/suspend", {.size_bytes = size_bytes, .device = std::move(device)});
  segment.fill(std::byte{7});
  segment.publish();
  std::printf("{\"size_bytes\": %llu, \"device\": \"%s\", \"repetitions\": %d",
              static_cast<unsigned long long>(size_bytes),
              segment.device().text().c_str(),
              repetitions);
  for (const suspend_mode mode : {suspend_mode::keep, suspend_mode::host, suspend_mode::discard}) {
    std::printf(", %s", measure(segment, mode, repetitions).c_str());
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    const gpushm::bench::broker_process broker;  // a fork, before the driver is used
    const std::vector<std::string> given(argv + 1, argv + argc);
    const double gib = !given.empty() ? std::stod(given[0]) : 10;
    const int repetitions = given.size() > 2 ? std::stoi(given[2]) : 10;
    const auto size_bytes = static_cast<std::uint64_t>(gib * (1ULL << 30U));
    if (size_bytes < gpushm::bench::checked_bytes || repetitions < 1) {
      throw std::runtime_error("GIB and REPETITIONS must be positive");
    }
    return gpushm::bench::run(broker,
                              size_bytes,
                              given.size() > 1                 ? given[1]
                              : gpushm::bench::gpu_count() > 0 ? "0"
                                                               : "host",
                              repetitions);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_suspend: %s\n", why.what());
    return 1;
  }
}
