// SPDX-License-Identifier: Apache-2.0
#include "client/lease/handback_thread.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/process/thread.hpp"
#include "base/report/log.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::milliseconds;

/// Intervals between attempts. No event reports that there is a broker again.
constexpr milliseconds first_pause{10};
constexpr milliseconds longest_pause{1'000};
constexpr std::chrono::minutes longest_wait{10};

}  // namespace

void handback_thread::stop() noexcept {
  stop_.request_stop();
  std::jthread ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(thread_);
  }
}

bool handback_thread::start() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (!thread_.joinable() && !stop_.stop_requested()) {
      thread_ = base::start_thread("gpushm-handback", [this] { run(); });
    }
    is_wanted_ = true;
    is_busy_ = true;
    changed_.notify_all();
    return true;
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
    return false;
  }
}

bool handback_thread::is_busy() const {
  const std::lock_guard lock(mutex_);
  return is_busy_;
}

void handback_thread::run() {
  const std::stop_token stop = stop_.get_token();
  std::unique_lock lock(mutex_);
  // A stop also ends a wait for what is wanted meanwhile.
  while (changed_.wait(lock, stop, [this] { return is_wanted_; }) && !stop.stop_requested()) {
    const auto give_up = std::chrono::steady_clock::now() + longest_wait;
    milliseconds pause = first_pause;
    for (bool is_done = false; !is_done && !stop.stop_requested();) {
      is_wanted_ = false;
      lock.unlock();
      is_done = attempt_(stop) || std::chrono::steady_clock::now() >= give_up;
      lock.lock();
      if (!is_done) {
        changed_.wait_for(lock, stop, std::exchange(pause, std::min(pause * 2, longest_pause)), [] {
          return false;
        });
      }
    }
    is_busy_ = is_wanted_;
  }
}

}  // namespace gpushm::client_detail
