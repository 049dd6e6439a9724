// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/repeat.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "apps/support/stop_signal.hpp"

namespace gpushm::selftest {

namespace {

constexpr int max_outputs = 5;

class repetition {
 public:
  repetition(const check& check, int times, std::chrono::milliseconds limit)
      : one_(check), times_(times), limit_(limit) {}

  void work() {
    for (int run = next_++; run <= times_ && !stop_.pending(); run = next_++) {
      const outcome ended = one_.run(limit_);
      const std::scoped_lock lock(mutex_);
      note(run, ended);
    }
  }

  [[nodiscard]] outcome result() {
    outcome outcome;
    outcome.output = std::move(output_);
    outcome.detail = std::to_string(runs_) + " runs";
    if (failed_ != 0) {
      outcome.detail += fmt::format(", {} failed: {}", failed_, first_);
    } else if (runs_ < times_) {
      outcome.detail += ", then interrupted";
    } else if (skipped_ == runs_) {
      outcome.result = verdict::skipped;
      outcome.detail = reason_;
    } else {
      outcome.result = verdict::passed;
    }
    outcome.data = json{{"runs", runs_}, {"failures", std::move(failures_)}};
    return outcome;
  }

 private:
  void note(int run, const outcome& ended) {
    ++runs_;
    if (ended.result == verdict::skipped) {
      ++skipped_;
      reason_ = ended.detail;
    }
    if (ended.result != verdict::failed) {
      return;
    }
    const std::string text = fmt::format("run {}: {}", run, ended.detail);
    first_ = failed_ == 0 ? text : first_;
    if (++failed_ <= max_outputs) {
      output_ += fmt::format("--- {}\n{}", text, ended.output);
    }
    failures_.push_back(json{{"run", run}, {"detail", ended.detail}});
  }

  const check& one_;
  const int times_;
  const std::chrono::milliseconds limit_;
  const app::stop_signal stop_;
  std::atomic<int> next_{1};
  std::mutex mutex_;  // guards the members below
  int runs_ = 0;
  int failed_ = 0;
  int skipped_ = 0;
  std::string first_;
  std::string reason_;
  std::string output_;
  json failures_ = json::array();
};

}  // namespace

outcome run_repeatedly(const check& check, int times, int jobs, std::chrono::milliseconds limit) {
  repetition all(check, times, limit);
  {
    const int count = std::min(times, jobs);
    std::vector<std::jthread> workers;
    workers.reserve(static_cast<std::size_t>(std::max(count, 0)));
    for (int i = 0; i < count; ++i) {
      workers.emplace_back([&all] { all.work(); });
    }
  }
  return all.result();
}

}  // namespace gpushm::selftest
