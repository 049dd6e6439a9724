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

/// The limited resources of a domain. Everything that a broker keeps on behalf of a member is
/// charged to one of these first.
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

/// Bytes charged per object, in addition to its text: measured broker heap (docs/results) and
/// kernel memory (struct sizes of Linux 6.x), rounded up.
struct cost {
  static constexpr std::uint64_t connection =
      8'192;  ///< session, its tasks, struct unix_sock, files
  static constexpr std::uint64_t segment = 2'048;
  static constexpr std::uint64_t chunk = 64;
  static constexpr std::uint64_t lease = 256;
  static constexpr std::uint64_t waiting_open = 768;
  static constexpr std::uint64_t subscription = 256;
  static constexpr std::uint64_t packet = 512;  ///< in addition to its bytes
};

/// The party that usage is charged to. Members of one tenant have one key (docs/threat-model.md,
/// "Principals").
struct principal {
  std::string key;  ///< also its name in messages: "container 3f9c…", "uid 1000", "process 17"
  /// False: only the process itself is known; all such processes also share one bucket.
  bool vouched_for = true;

  friend bool operator==(const principal&, const principal&) = default;
};

/// The error for a request when allocation fails.
[[nodiscard]] error broker_out_of_memory();

/// Memory and descriptors of a process, shared by the brokers in it. A single domain may use
/// everything; several follow the rules of `budget`, so that a full domain leaves room for the
/// others.
///
/// Thread-safe. Does not block.
class process_budget {
 public:
  /// 0: no limit.
  process_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) noexcept;

  void add_domain() noexcept { domains_.fetch_add(1, std::memory_order_relaxed); }
  void remove_domain() noexcept { domains_.fetch_sub(1, std::memory_order_relaxed); }
  /// Only memory_bytes and descriptors; `held` is the amount that the domain has now.
  [[nodiscard]] bool take(resource what, std::uint64_t amount, std::uint64_t held) noexcept;
  /// Charges without a check, for what exists already.
  void charge(resource what, std::uint64_t amount) noexcept {
    used_[static_cast<std::size_t>(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  void release(resource what, std::uint64_t amount) noexcept;
  [[nodiscard]] std::uint64_t used(resource what) const noexcept;
  [[nodiscard]] std::uint64_t capacity(resource what) const noexcept;
  [[nodiscard]] static constexpr bool is_limited(resource what) noexcept {
    return what == resource::memory_bytes || what == resource::descriptors;
  }

 private:
  std::array<std::uint64_t, 2> capacity_;
  std::array<std::atomic<std::uint64_t>, 2> used_{};
  std::atomic<std::uint32_t> domains_{0};
};

class budget;

/// One principal's use of a domain. Shared by sessions and segments; destroyed with the last of
/// them.
///
/// Thread-safety: objects of different budgets: safe; others: unsafe. Runs on the broker's strand.
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
  /// Of the processes that are not vouched for; null for the others.
  std::shared_ptr<account> bucket_;
  std::array<std::uint64_t, resource_count> used_{};
};

/// One domain's budget, by principal. Grants cannot be reclaimed, so each request is
/// checked against two rules that must both hold:
///  - A principal holds at most `share_factor` times what is free (a dynamic threshold: Choudhury
///    and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): a
///    single one gets 8/9 of the total, and some is always free for a new one.
///  - Of n principals that hold any, each holds at most 8/(8n+1) of the total, or as much as is
///    free: two get half each, and can borrow what others do not use up to half.
///
/// A small floor is granted as long as anything is left, and a part is reserved for the operator:
/// the broker's own uid.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class budget {
 public:
  static constexpr std::uint64_t share_factor = 8;
  using amounts = std::array<std::uint64_t, resource_count>;

  /// Capacities by resource; 0: no limit. `process` may be null: the only domain of the process.
  /// Memory is taken `memory_copies` times: 2 if what is charged is also in a journal.
  budget(const amounts& capacity,
         std::shared_ptr<process_budget> process,
         std::uint64_t memory_copies = 1);
  budget(const budget&) = delete;
  budget& operator=(const budget&) = delete;
  ~budget();

  /// Returns the principal's account; creates it if it has none.
  [[nodiscard]] std::shared_ptr<account> account_of(const principal& who);

  /// Takes `amount` of `what` and returns nullopt, or returns why it is refused. `is_operator`: the
  /// request is from the broker's own uid, for which only the total limit applies.
  [[nodiscard]] std::optional<error> take(account& who,
                                          resource what,
                                          std::uint64_t amount,
                                          bool is_operator = false);
  /// The same without an error text, for frequent requests.
  [[nodiscard]] bool try_take(account& who,
                              resource what,
                              std::uint64_t amount,
                              bool is_operator = false) noexcept;
  /// Takes without a check, for what exists already, such as bytes that a peer has not read.
  void charge(account& who, resource what, std::uint64_t amount) noexcept;
  void release(account& who, resource what, std::uint64_t amount) noexcept;
  /// False when the principal holds more than it could take now: it must release some first.
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

  /// What is counted for an amount that a caller takes or releases.
  [[nodiscard]] std::uint64_t counted(resource what, std::uint64_t amount) const noexcept;

  amounts capacity_;
  std::uint64_t memory_copies_;
  amounts used_{};
  std::shared_ptr<process_budget> process_;
  std::map<std::string, std::weak_ptr<account>> accounts_;
  amounts users_{};  ///< principals that hold any
};

/// Charges of one session or segment; returned on destruction.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
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

  /// Throws the error that `budget::take` returns.
  void take(resource what, std::uint64_t amount);
  [[nodiscard]] bool try_take(resource what, std::uint64_t amount) noexcept;
  /// Takes without a check.
  void charge(resource what, std::uint64_t amount) noexcept;
  void release(resource what, std::uint64_t amount) noexcept;
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
