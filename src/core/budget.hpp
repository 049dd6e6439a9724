// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpushm/error.hpp"

namespace gpushm::core {

/// What members of a domain can use up. Everything that a broker keeps on behalf of a member is
/// taken from one of these before it is kept.
enum class resource : std::uint8_t {
  memory_bytes,  ///< heap, metadata, queued and unread packets
  descriptors,   ///< connections, chunks
  connections,
  segments,
  segment_bytes,  ///< claimed bytes of segments; the quota
  subscriptions,
  waiting_opens,  ///< for a name, or for an exporter's confirmation
};
inline constexpr std::size_t resource_count = 7;

/// What is charged for the things whose size is not just their text, in bytes: measured heap of the
/// broker (docs/results) and the kernel's memory (struct sizes of Linux 6.x), rounded up.
struct cost {
  static constexpr std::uint64_t connection =
      8'192;  ///< session, its tasks, struct unix_sock, files
  static constexpr std::uint64_t segment = 2'048;
  static constexpr std::uint64_t chunk = 64;
  static constexpr std::uint64_t lease = 256;
  static constexpr std::uint64_t waiting_open = 768;
  static constexpr std::uint64_t subscription = 256;
  static constexpr std::uint64_t packet = 512;  ///< besides its bytes
};

/// Whom usage is charged to. Members that are one tenant have one key (docs/threat-model.md,
/// "Principals").
struct principal {
  std::string key;  ///< also what messages call it: "container 3f9c…", "uid 1000", "process 17"
  bool vouched_for =
      true;  ///< false: nothing but the process itself is known; all of those share one bucket too

  friend bool operator==(const principal&, const principal&) = default;
};

/// What a request is refused with when the allocator has no memory.
[[nodiscard]] error broker_out_of_memory();

/// Memory and descriptors of a process, shared by the brokers in it. With one domain in it the
/// domain may use all; with several the rules are those of `budget`, so that a full domain leaves
/// room for the others.
///
/// Thread-safe. Nothing blocks.
class process_budget {
 public:
  /// 0: no limit.
  process_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) noexcept;

  void add_domain() noexcept { domains_.fetch_add(1, std::memory_order_relaxed); }
  void remove_domain() noexcept { domains_.fetch_sub(1, std::memory_order_relaxed); }
  /// Only memory_bytes and descriptors; `held` is what the domain has of it now.
  [[nodiscard]] bool take(resource what, std::uint64_t amount, std::uint64_t held) noexcept;
  /// Without asking: for what is there already.
  void charge(resource what, std::uint64_t amount) noexcept {
    used_[static_cast<std::size_t>(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  void give_back(resource what, std::uint64_t amount) noexcept;
  [[nodiscard]] std::uint64_t used(resource what) const noexcept;
  [[nodiscard]] std::uint64_t capacity(resource what) const noexcept;
  [[nodiscard]] static constexpr bool counts(resource what) noexcept {
    return what == resource::memory_bytes || what == resource::descriptors;
  }

 private:
  std::array<std::uint64_t, 2> capacity_;
  std::array<std::atomic<std::uint64_t>, 2> used_{};
  std::atomic<std::uint32_t> domains_{0};
};

class budget;

/// What one principal uses of a domain. Held by sessions and segments; ends with the last of them.
///
/// Distinct objects of different budgets: safe. Otherwise unsafe; runs on the broker's strand.
class account {
 public:
  account(budget& of, principal who, std::shared_ptr<account> bucket);
  account(const account&) = delete;
  account& operator=(const account&) = delete;
  ~account();

  [[nodiscard]] const std::string& name() const noexcept { return who_.key; }
  [[nodiscard]] std::uint64_t used(resource what) const noexcept {
    return used_[static_cast<std::size_t>(what)];
  }

 private:
  friend class budget;
  budget& of_;
  principal who_;
  std::shared_ptr<account>
      bucket_;  ///< of the processes that nothing vouches for; null for the others
  std::array<std::uint64_t, resource_count> used_{};
};

/// One domain's budget, by principal. What is kept cannot be taken back, so it is decided at each
/// request whether it may grow, by two rules that must both hold:
///  - A principal holds at most `share_factor` times what is free (a dynamic threshold: Choudhury
///  and Hahne, "Dynamic Queue
///    Length Thresholds for Shared-Memory Packet Switches", 1998): one alone gets 8/9 of
///    everything, and a newcomer always finds something free.
///  - With n principals that hold any, it holds at most 8/(8n+1) of everything, or as much as is
///  free: two get half each, and what
///    others do not use can be borrowed up to half.
/// A small floor is granted as long as anything is left, and a part is kept for the operator: the
/// broker's own uid.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand.
class budget {
 public:
  static constexpr std::uint64_t share_factor = 8;
  using amounts = std::array<std::uint64_t, resource_count>;

  /// Capacities by resource; 0: no limit. `process` may be null: then the domain is alone.
  budget(const amounts& capacity, std::shared_ptr<process_budget> process);
  budget(const budget&) = delete;
  budget& operator=(const budget&) = delete;
  ~budget();

  /// The account of that principal, made when it has none.
  [[nodiscard]] std::shared_ptr<account> account_of(const principal& who);

  /// Why `amount` more of `what` is refused; nothing: it has been taken. `is_operator`: the
  /// broker's own uid asks, for which only the whole counts.
  [[nodiscard]] std::optional<error> take(account& who,
                                          resource what,
                                          std::uint64_t amount,
                                          bool is_operator = false);
  /// The same without a text: for what is decided often.
  [[nodiscard]] bool try_take(account& who,
                              resource what,
                              std::uint64_t amount,
                              bool is_operator = false) noexcept;
  /// Takes without asking: for what is there already, such as bytes that a peer has not read.
  void charge(account& who, resource what, std::uint64_t amount) noexcept;
  void give_back(account& who, resource what, std::uint64_t amount) noexcept;
  /// False when the principal holds more of it than it could take now: it has to shrink before it
  /// goes on.
  [[nodiscard]] bool within_share(const account& who, resource what) const noexcept;

  [[nodiscard]] std::uint64_t used(resource what) const noexcept {
    return used_[static_cast<std::size_t>(what)];
  }
  [[nodiscard]] std::uint64_t capacity(resource what) const noexcept {
    return capacity_[static_cast<std::size_t>(what)];
  }
  [[nodiscard]] std::size_t account_count() const noexcept { return accounts_.size(); }

 private:
  friend class account;
  enum class answer : std::uint8_t { yes, whole, process, share };

  [[nodiscard]] answer may_take(const account& who,
                                resource what,
                                std::uint64_t amount,
                                bool is_operator) const noexcept;
  void add(account& who, resource what, std::uint64_t amount) noexcept;
  void remove(account& who, resource what, std::uint64_t amount) noexcept;
  [[nodiscard]] error refusal(const account& who,
                              resource what,
                              std::uint64_t amount,
                              answer why) const;

  amounts capacity_;
  amounts used_{};
  std::shared_ptr<process_budget> process_;
  std::map<std::string, std::weak_ptr<account>> accounts_;
  amounts users_{};  ///< principals that hold any
};

/// What one session or segment holds; goes back with the object.
///
/// Distinct objects: safe. Shared objects: unsafe.
class charges {
 public:
  charges() = default;
  charges(budget& of, std::shared_ptr<account> who, bool is_operator) noexcept
      : of_(&of), who_(std::move(who)), is_operator_(is_operator) {}
  charges(charges&& other) noexcept
      : of_(std::exchange(other.of_, nullptr)),
        who_(std::move(other.who_)),
        is_operator_(other.is_operator_),
        held_(std::exchange(other.held_, {})) {}
  charges& operator=(charges&& other) noexcept {
    if (this != &other) {
      reset();
      of_ = std::exchange(other.of_, nullptr);
      who_ = std::move(other.who_);
      is_operator_ = other.is_operator_;
      held_ = std::exchange(other.held_, {});
    }
    return *this;
  }
  charges(const charges&) = delete;
  charges& operator=(const charges&) = delete;
  ~charges() { reset(); }

  /// Throws what `budget::take` says.
  void take(resource what, std::uint64_t amount);
  [[nodiscard]] bool try_take(resource what, std::uint64_t amount) noexcept;
  /// Takes without asking.
  void charge(resource what, std::uint64_t amount) noexcept;
  void give_back(resource what, std::uint64_t amount) noexcept;
  void reset() noexcept;

  [[nodiscard]] std::uint64_t held(resource what) const noexcept {
    return held_[static_cast<std::size_t>(what)];
  }
  [[nodiscard]] bool within_share(resource what) const noexcept {
    return is_operator_ || of_->within_share(*who_, what);
  }
  /// Null in a moved-from object.
  [[nodiscard]] const std::shared_ptr<account>& who() const noexcept { return who_; }

 private:
  budget* of_ = nullptr;
  std::shared_ptr<account> who_;
  bool is_operator_ = false;
  budget::amounts held_{};
};

}  // namespace gpushm::core
