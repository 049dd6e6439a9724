// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/budget.hpp"

namespace gpushm::broker_detail {

class inflight_charge;

/// What the descriptors of a packet are for. Members that leave descriptors of segments unread do
/// not keep others from connecting.
enum class inflight_use : std::uint8_t {
  reply,
  welcome,
};

/// Descriptors that a broker has sent and that may be unread, by principal (core::budget). Linux
/// counts them for the uid of the sender, and above the limit of open files it refuses every packet
/// with descriptors, also those for the keeper. So the brokers of a process send at most half as
/// many: a quarter of the limit for replies, a quarter for Welcome.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class inflight_budget {
 public:
  /// Shares the amounts of this process, which are read at the first use. Throws std::bad_alloc.
  inflight_budget();
  /// `capacity`: for each use.
  explicit inflight_budget(std::uint64_t capacity);
  inflight_budget(const inflight_budget&) = delete;
  inflight_budget& operator=(const inflight_budget&) = delete;
  ~inflight_budget() = default;

  /// Returns charges of sockets whose peers have read everything: nothing reports that. Looks at a
  /// bounded number of sockets, not more often than once in a millisecond. Does not block.
  void settle() noexcept;

 private:
  friend class inflight_charge;
  using clock = std::chrono::steady_clock;
  [[nodiscard]] core::budget& of(inflight_use use) noexcept {
    return use == inflight_use::welcome ? welcomes_ : replies_;
  }

  core::budget replies_;
  core::budget welcomes_;
  std::vector<inflight_charge*> charged_;  ///< those that hold any
  std::size_t next_ = 0;                   ///< index there: the next one to look at
  clock::time_point next_settling_{};
};

/// The part of an inflight_budget that one socket holds. Returned on destruction.
///
/// Thread-safety: as inflight_budget.
class inflight_charge {
 public:
  inflight_charge() = default;
  inflight_charge(inflight_charge&& other) noexcept { take_over(other); }
  inflight_charge& operator=(inflight_charge&& other) noexcept {
    if (this != &other) {
      reset();
      take_over(other);
    }
    return *this;
  }
  inflight_charge(const inflight_charge&) = delete;
  inflight_charge& operator=(const inflight_charge&) = delete;
  ~inflight_charge() { reset(); }

  /// For descriptors that are about to be sent to `socket`, which must stay open as long as this
  /// holds any. Returns false if there is no room, or no memory. Precondition: the same budget,
  /// principal and socket as before.
  [[nodiscard]] bool try_take(const std::shared_ptr<inflight_budget>& inflight_budget,
                              const core::principal& principal,
                              int socket,
                              inflight_use use,
                              std::uint64_t count) noexcept;
  void release(inflight_use use, std::uint64_t count) noexcept;
  void reset() noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return parts_[0].count + parts_[1].count; }
  /// The peer has read all that was sent.
  [[nodiscard]] bool is_read() const noexcept;

 private:
  struct part {
    std::shared_ptr<core::account> who;
    std::uint64_t count = 0;
  };
  friend class inflight_budget;
  void take_over(inflight_charge& other) noexcept;
  void leave() noexcept;

  std::shared_ptr<inflight_budget> from_;  ///< before the accounts, which refer to it
  std::array<part, 2> parts_;
  int socket_ = -1;
  std::size_t place_ = 0;  ///< in `charged_`, if it holds any
};

}  // namespace gpushm::broker_detail
