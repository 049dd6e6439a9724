// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace gpushm::base {

/// Gives each name (of a claim, of a domain) to one caller at a time. Callers of different names do
/// not wait for each other.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class busy_names {
  struct end_of_hold {
    busy_names* of = nullptr;
    void operator()(const std::string* name) const noexcept;
  };

 public:
  /// Exclusive use of a name, to which it points, until it is reset or destroyed, on any thread.
  /// Must not outlive its `busy_names`. Empty by default and after a move.
  ///
  /// Thread-safety: distinct objects: safe; shared objects: unsafe.
  using hold = std::unique_ptr<const std::string, end_of_hold>;

  /// Blocks while another hold of `name` exists, also one of the same thread, until `deadline`:
  /// then returns an empty hold. Does not block after `deadline`, and still takes a free name.
  /// Callers that wait for the same name get it in any order. Throws `std::bad_alloc`.
  [[nodiscard]] hold take(const std::string& name, std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<std::string> held_;  // guarded by mutex_
};

}  // namespace gpushm::base
