// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "client/session/fork_guard.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

/// Handles of the C interface that are numbers in the form of pointers: a stale or foreign one is
/// looked up, and refused, but never read. A number is not used again in a process.
///
/// `Object::handle_kind` is its own for each type, 1 to 15; `Object::handle_name` is its name in
/// errors.
///
/// Thread-safety: shared objects: safe.
template <typename Object>
class handle_table {
 public:
  /// The table of this process. A forked child gets a new one, because the parent's lock may be
  /// held.
  [[nodiscard]] static handle_table& of_process() {
    static std::atomic<handle_table*> current{nullptr};
    handle_table* table = current.load(std::memory_order_acquire);
    while (table == nullptr || is_forked_child_of(table->forks_)) {
      auto made = std::unique_ptr<handle_table>(new handle_table());
      if (current.compare_exchange_strong(table, made.get(), std::memory_order_acq_rel)) {
        return *made.release();  // never destroyed: handles may be used until the process ends
      }
    }
    return *table;
  }

  [[nodiscard]] void* add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const std::uintptr_t number = (++last_ << number_shift) | this_process() | Object::handle_kind;
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): never read
  }
  /// Throws invalid_argument, forked (it is of the parent of this process).
  [[nodiscard]] std::shared_ptr<Object> find(const void* handle, std::string_view operation) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = objects_.find(number); at != objects_.end()) {
        return at->second;
      }
    }
    const bool is_of_this_type = (number & kind_mask) == Object::handle_kind;
    if (is_of_this_type && (number & process_mask) != this_process()) {
      throw_forked(operation, Object::handle_name);
    }
    throw error(errc::invalid_argument,
                operation,
                Object::handle_name,
                handle == nullptr ? "this handle is empty"
                                  : "it is no longer valid: used before, or its channel object "
                                    "was closed",
                "use each slot and item once, before the producer or consumer is closed");
  }
  void remove(const void* handle) noexcept {
    std::shared_ptr<Object> removed;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    if (const auto at = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
        at != objects_.end()) {
      removed = std::move(at->second);
      objects_.erase(at);
    }
  }
  [[nodiscard]] std::size_t size() {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  // From the lowest bit: the kind (4 bits), the process (12), a number that is not used again (48).
  static constexpr std::uintptr_t kind_mask = 0xF;
  static constexpr std::uintptr_t process_mask = 0xFFF0;
  static constexpr unsigned process_shift = 4;
  static constexpr unsigned number_shift = 16;
  static_assert(Object::handle_kind != 0 && Object::handle_kind <= kind_mask);
  static_assert(sizeof(std::uintptr_t) == sizeof(std::uint64_t));

  handle_table() = default;
  [[nodiscard]] std::uintptr_t this_process() const noexcept {
    return (forks_ << process_shift) & process_mask;
  }

  const std::uint64_t forks_ = fork_count();
  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::unordered_map<std::uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace gpushm::client_detail
