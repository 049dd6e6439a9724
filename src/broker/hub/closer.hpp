// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "core/budget.hpp"
#include "gpushm/types.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/kept_fd.hpp"

namespace gpushm::broker_detail {

/// Closes memory files on a separate thread: the last close of a memfd or of a driver export frees
/// the memory, which takes the kernel 0.2 s per GiB (results). Only for verified memory files:
/// a close that might never return goes to the descriptor receiver. What is charged for the memory
/// is returned when it is free: closed here and by the keeper.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class closer {
 public:
  /// `shelf`: where the keeper's copies are removed first, so that its close frees no memory.
  explicit closer(std::optional<succession::descriptor_shelf> shelf = {});
  closer(const closer&) = delete;
  closer& operator=(const closer&) = delete;
  /// Blocks up to `close_timeout` until everything is closed; the rest is closed later.
  ~closer();

  /// Closes the files after the next `flush`. Closes them at once, in the calling thread, if memory
  /// is short. `held`: the charges for them, kept until `collect` finds them closed; null: none.
  /// `generation`: of their segment, for `collect`.
  void close(std::vector<succession::kept_fd> files,
             std::shared_ptr<core::charges> held = {},
             gpushm::generation generation = 0) noexcept;
  /// Call when no record refers to them any longer. Does not block.
  void flush() noexcept;
  /// From here on, the keeper's copies stay: records of a successor refer to them.
  void leave_to_successor() noexcept;

  /// Returns the charges for what has been closed, of at most 1,024 segments; calls `closed`, which
  /// must not throw, with the generation of each. Returns false if there is nothing new. Does not
  /// block.
  template <typename Closed>
  bool collect(Closed&& closed) noexcept {
    std::list<freeing> freeings = take_closed();
    for (const freeing& each : freeings) {
      closed(each.generation);
    }
    const bool any = !freeings.empty();
    drop(freeings);
    return any;
  }
  /// Returns all charges, now and in later calls of `close`: their budget is about to end.
  void end_charges() noexcept;
  /// Charges are held for files that `collect` has not found closed.
  [[nodiscard]] bool is_freeing() const noexcept {
    return !held_charges_.empty() || !freeing_.empty();
  }
  /// Some wait for `flush`.
  [[nodiscard]] bool has_to_flush() const noexcept { return !held_.empty(); }
  /// Identifies what is being freed now.
  [[nodiscard]] std::uint64_t mark() const noexcept { return given_ + held_.size(); }
  /// Whether everything that was being freed at that `mark` is free.
  [[nodiscard]] bool is_freed(std::uint64_t mark) const noexcept {
    const auto& oldest = freeing_.empty() ? held_charges_ : freeing_;
    return oldest.empty() || oldest.front().end > mark;
  }
  struct waiting {
    std::uint64_t segments = 0;
    std::uint64_t bytes = 0;
    std::chrono::steady_clock::time_point since{};  ///< of the oldest, if there are any
  };
  [[nodiscard]] waiting what_waits() const noexcept {
    const auto& oldest = freeing_.empty() ? held_charges_ : freeing_;
    return {freeing_.size() + held_charges_.size(),
            freeing_bytes_,
            oldest.empty() ? waiting{}.since : oldest.front().since};
  }
  /// Bytes of segments among them.
  [[nodiscard]] std::uint64_t freeing_bytes() const noexcept { return freeing_bytes_; }

 private:
  static constexpr std::chrono::seconds close_timeout{2};
  struct state;
  /// Charges, returned when `end` files have been closed since the start.
  struct freeing {
    std::uint64_t end = 0;
    std::uint64_t bytes = 0;
    std::shared_ptr<core::charges> held;
    gpushm::generation generation = 0;
    std::chrono::steady_clock::time_point since{};
  };
  /// In the order of closing.
  [[nodiscard]] std::list<freeing> take_closed() noexcept;
  void drop(std::list<freeing>& freeings) noexcept;

  std::shared_ptr<state> state_;
  std::vector<succession::kept_fd> held_;
  std::list<freeing> held_charges_;  ///< for files in `held_`
  std::list<freeing> freeing_;       ///< for those that the thread has, in its order
  std::uint64_t given_ = 0;          ///< files that the thread got so far
  std::uint64_t freeing_bytes_ = 0;
  bool holds_charges_ = true;
};

}  // namespace gpushm::broker_detail
