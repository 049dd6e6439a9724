// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "wire/messages.hpp"

namespace gpushm::detail {

/// How opens went, until it is sent: any number of threads add, the connection's thread takes.
///
/// Distinct objects: safe. Shared objects: safe, but for `add_cached`.
class open_reports {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  /// One packet reports the opens of that time, or as many as fit into one.
  static constexpr std::chrono::seconds delay{1};
  /// Values of either kind that are kept when nobody takes them; further ones are not counted.
  static constexpr std::size_t max_kept = 64 * wire::max_batch;

  /// True when `due` is earlier now than before.
  bool add_latency(std::uint64_t nanoseconds) { return add(open_ns_, nanoseconds); }
  bool add_failure(std::uint64_t code) { return add(failures_, code); }
  /// No lock. Is part of the next report but does not make one due. One caller at a time.
  void add_cached() noexcept {
    cached_.store(cached_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// When the next report should be sent; nothing when there is nothing to report.
  [[nodiscard]] std::optional<time_point> due() const {
    const std::lock_guard lock(mutex_);
    return due_;
  }

  /// The oldest values, at most as many of each kind as a report may have; nothing when there are
  /// none. What is left is due at once.
  [[nodiscard]] std::optional<wire::report> take() {
    const std::lock_guard lock(mutex_);
    wire::report taken{first_of(open_ns_), first_of(failures_), 0};
    taken.cached = cached_.load(std::memory_order_relaxed) - told_cached_;
    told_cached_ += taken.cached;
    if (open_ns_.empty() && failures_.empty()) {
      due_.reset();
    }
    if (taken == wire::report{}) {
      return std::nullopt;
    }
    return taken;
  }

 private:
  bool add(std::vector<std::uint64_t>& list, std::uint64_t value) {
    const std::lock_guard lock(mutex_);
    if (list.size() >= max_kept) {
      return false;
    }
    list.push_back(value);
    if (list.size() == wire::max_batch) {
      due_ = std::chrono::steady_clock::now();
      return true;
    }
    if (!due_) {
      due_ = std::chrono::steady_clock::now() + delay;
      return true;
    }
    return false;
  }

  /// A longer list would be a violation of the protocol: the broker hangs up.
  static std::vector<std::uint64_t> first_of(std::vector<std::uint64_t>& list) {
    if (list.size() <= wire::max_batch) {
      return std::exchange(list, {});
    }
    const auto end = list.begin() + static_cast<std::ptrdiff_t>(wire::max_batch);
    std::vector<std::uint64_t> result(list.begin(), end);
    list.erase(list.begin(), end);
    return result;
  }

  mutable std::mutex mutex_;
  std::vector<std::uint64_t> open_ns_;
  std::vector<std::uint64_t> failures_;
  std::optional<time_point> due_;
  std::atomic<std::uint64_t> cached_{0};
  std::uint64_t told_cached_ = 0;
};

}  // namespace gpushm::detail
