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

#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Results of opens, and items of channels, until they are sent: any number of threads add, the
/// connection's thread takes.
///
/// Thread-safety: distinct objects: safe; shared objects: safe, except `add_cached`.
class open_reports {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  /// A packet reports the opens of this time, or as many as fit into one.
  static constexpr std::chrono::seconds delay{1};
  /// Upper bound of values of either kind that are not taken; further ones are not counted.
  static constexpr std::size_t max_kept = 64 * wire::max_batch;

  /// Returns true if `due` is now earlier than before.
  /// `import_ns`: the part of `open_ns` after the broker's reply.
  bool add_latency(std::uint64_t open_ns, std::uint64_t import_ns) {
    return add(open_ns_, open_ns, &import_ns);
  }
  bool add_failure(std::uint64_t code) { return add(failures_, code); }
  /// No lock. Is part of the next report but does not make one due. Calls must not run
  /// concurrently.
  void add_cached() noexcept {
    cached_.store(cached_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// Counts an item that was published in a slot of `bytes`. No lock, except once for each report.
  /// Returns true if `due` is now earlier than before.
  bool add_item(std::uint64_t bytes) {
    item_bytes_.fetch_add(bytes);
    items_.fetch_add(1);
    // In one order with those and with `take`: it either takes this item, or clears the flag before
    // it is read here.
    if (has_items_.load() || has_items_.exchange(true)) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    return become_due();
  }

  /// When to send the next report; nullopt if there is nothing to report.
  [[nodiscard]] std::optional<time_point> due() const {
    const std::lock_guard lock(mutex_);
    return due_;
  }

  /// Returns the oldest values, at most as many of each kind as fit into a report; nullopt if there
  /// are none. The rest is due immediately.
  [[nodiscard]] std::optional<wire::report> take() {
    const std::lock_guard lock(mutex_);
    wire::report taken{first_of(open_ns_), first_of(failures_)};
    taken.import_ns = first_of(import_ns_);
    has_items_ = false;
    taken.items = items_.load() - reported_items_;
    reported_items_ += taken.items;
    taken.item_bytes = item_bytes_.load() - reported_item_bytes_;
    reported_item_bytes_ += taken.item_bytes;
    taken.cached = cached_.load(std::memory_order_relaxed) - reported_cached_;
    reported_cached_ += taken.cached;
    if (open_ns_.empty() && failures_.empty()) {
      due_.reset();
    }
    if (taken == wire::report{}) {
      return std::nullopt;
    }
    return taken;
  }

 private:
  bool add(std::vector<std::uint64_t>& list,
           std::uint64_t value,
           const std::uint64_t* import_ns = nullptr) {
    const std::lock_guard lock(mutex_);
    if (list.size() >= max_kept) {
      return false;
    }
    if (import_ns != nullptr) {
      import_ns_.push_back(*import_ns);
    }
    list.push_back(value);
    if (list.size() == wire::max_batch) {
      due_ = std::chrono::steady_clock::now();
      return true;
    }
    return become_due();
  }

  /// With the lock held.
  bool become_due() {
    if (due_) {
      return false;
    }
    due_ = std::chrono::steady_clock::now() + delay;
    return true;
  }

  /// A longer list violates the protocol: the broker closes the connection.
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
  std::vector<std::uint64_t> import_ns_;
  std::vector<std::uint64_t> failures_;
  std::optional<time_point> due_;
  std::atomic<std::uint64_t> cached_{0};
  std::uint64_t reported_cached_ = 0;
  std::atomic<bool> has_items_{false};  ///< some that are not taken, and a report is due
  std::atomic<std::uint64_t> items_{0};
  std::atomic<std::uint64_t> item_bytes_{0};
  std::uint64_t reported_items_ = 0;
  std::uint64_t reported_item_bytes_ = 0;
};

}  // namespace gpushm::client_detail
