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
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::core {

/// The limited resources of a domain. Everything that a broker keeps on behalf of a member is
/// charged to one of these first.
enum class resource : std::uint8_t {
  memory_bytes,  ///< heap, metadata, queued and unread packets
  descriptors,   ///< connections, chunks
  connections,
  segments,
  host_bytes,  ///< claimed bytes of segments in host memory
  subscriptions,
  waiting_opens,  ///< for a name, or for an exporter's confirmation
  gpu_bytes,      ///< claimed bytes of segments on GPUs; each GPU has a capacity of its own
};
inline constexpr std::size_t resource_count = 8;

/// For messages of programs: never change one.
[[nodiscard]] std::string_view to_string(resource resource) noexcept;

/// GPUs that the segments of a domain are on at the same time: more than the MIG instances of a
/// node of 16 GPUs. Members only claim a UUID, so their number needs a bound.
inline constexpr std::uint32_t max_gpus = 128;

/// A resource, of one GPU where each has its own.
struct item {
  item(resource resource) noexcept : what(resource) {}
  item(resource resource, std::uint32_t number) noexcept : what(resource), gpu(number) {}
  resource what;
  std::uint32_t gpu = 0;  ///< `budget::number_of_gpu`; only for gpu_bytes
};

/// Bytes charged per object, in addition to its text: measured heap, rounded up (`hub_charges.*`:
/// not less than that, and with a journal, which has each object once more, at most 1.5 times heap
/// and journal). That of a connection is kernel memory mostly (struct sizes of Linux 6.x).
struct cost {
  static constexpr std::uint64_t connection =
      8'192;  ///< session, its tasks, struct unix_sock, files
  static constexpr std::uint64_t segment = 1'024;
  static constexpr std::uint64_t chunk = 64;
  static constexpr std::uint64_t lease = 192;
  /// The bytes of a waiting open, whose name is kept with the open, for its session and for the
  /// name.
  static constexpr std::uint64_t waiting_open(std::size_t name_bytes) noexcept {
    return 528 + std::uint64_t{3} * name_bytes;
  }
  static constexpr std::uint64_t subscription = 256;
  static constexpr std::uint64_t packet = 512;  ///< in addition to its bytes
};

/// The party that usage is charged to. Members of one tenant have one key (docs/threat-model.md,
/// "Principals").
struct principal {
  std::string key;  ///< also its name in messages: "container 3f9c…", "uid 1000", "process 17"
  /// False if only the process itself is known; all such processes also share one bucket.
  bool vouched_for = true;

  friend bool operator==(const principal&, const principal&) = default;
};

/// The error for a request when allocation fails.
[[nodiscard]] error broker_out_of_memory();

/// The root of the tree: memory and descriptors of a process, shared by the brokers in it. A single
/// domain may use everything; several share it by the rule of `budget`, so that a full domain
/// leaves room for the others.
///
/// Thread-safe. Does not block.
class process_budget {
 public:
  /// 0: no limit.
  process_budget(std::uint64_t memory_bytes, std::uint64_t descriptors) noexcept;

  void add_domain() noexcept { domains_.fetch_add(1, std::memory_order_relaxed); }
  void remove_domain() noexcept { domains_.fetch_sub(1, std::memory_order_relaxed); }
  /// Only memory_bytes and descriptors; `held` is the amount that the domain has now.
  [[nodiscard]] bool take(resource resource, std::uint64_t amount, std::uint64_t held) noexcept;
  /// The most that a domain which holds `held` may hold now; 0: no limit.
  [[nodiscard]] std::uint64_t share_of(resource resource, std::uint64_t held) const noexcept;
  /// Charges without a check, for what exists already.
  void charge(resource resource, std::uint64_t amount) noexcept {
    used_[static_cast<std::size_t>(resource)].fetch_add(amount, std::memory_order_relaxed);
  }
  void release(resource resource, std::uint64_t amount) noexcept;
  [[nodiscard]] std::uint64_t used(resource resource) const noexcept;
  [[nodiscard]] std::uint64_t capacity(resource resource) const noexcept;
  [[nodiscard]] static constexpr bool is_limited(resource resource) noexcept {
    return resource == resource::memory_bytes || resource == resource::descriptors;
  }

 private:
  std::array<std::uint64_t, 2> capacity_;
  std::array<std::atomic<std::uint64_t>, 2> used_{};
  std::atomic<std::uint32_t> domains_{0};
};

class budget;

/// The kinds of nodes below the process.
enum class level : std::uint8_t { domain, uid, principal };
[[nodiscard]] std::string_view to_string(level level) noexcept;

/// A node of the tree: what a domain, a uid or a principal may use, and uses.
///
/// Thread-safety: objects of different budgets: safe; others: unsafe. Runs on the broker's strand.
class node {
 public:
  using amounts = std::array<std::uint64_t, resource_count>;

  node(budget& budget,
       level kind,
       std::string name,
       std::shared_ptr<node> parent,
       std::optional<std::uint32_t> uid = {})
      : of_(budget), key_(kind, std::move(name)), parent_(std::move(parent)), uid_(uid) {}
  node(const node&) = delete;
  node& operator=(const node&) = delete;
  ~node();

  [[nodiscard]] level kind() const noexcept { return key_.first; }
  [[nodiscard]] const std::string& name() const noexcept { return key_.second; }
  /// The used amount; for gpu_bytes that of all GPUs together.
  [[nodiscard]] std::uint64_t used(resource resource) const noexcept {
    return total_[static_cast<std::size_t>(resource)].used;
  }
  [[nodiscard]] std::uint64_t used(const item& item) const noexcept { return use_of(item).used; }
  /// 0: no limit. Of gpu_bytes: of each GPU.
  [[nodiscard]] std::uint64_t capacity(resource resource) const noexcept {
    return capacity_[static_cast<std::size_t>(resource)];
  }

 private:
  friend class budget;
  struct use {
    std::uint64_t used = 0;
    std::uint64_t users = 0;  ///< children that hold any
  };
  [[nodiscard]] use use_of(const item& item) const noexcept;
  /// Precondition: `make_room` for its GPU.
  [[nodiscard]] use& use_of(const item& item) noexcept;
  void make_room(std::uint32_t gpu);
  void add(const item& item, std::uint64_t amount) noexcept;
  void remove(const item& item, std::uint64_t amount) noexcept;

  budget& of_;
  std::pair<level, std::string> key_;
  std::shared_ptr<node> parent_;  ///< null for a domain, and for a uid: it has a quota, no share
  std::optional<std::uint32_t> uid_;  ///< of level::uid
  amounts capacity_{};
  std::array<use, resource_count> total_{};
  std::vector<use> gpus_;
};

/// The nodes that one party's charges are counted in. Shared by sessions and segments; destroyed
/// with the last of them.
///
/// Thread-safety: objects of different budgets: safe; others: unsafe. Runs on the broker's strand.
class account {
 public:
  account(budget& budget,
          std::string key,
          std::shared_ptr<node> principal,
          std::shared_ptr<node> uid)
      : of_(budget), key_(std::move(key)), principal_(std::move(principal)), uid_(std::move(uid)) {}
  account(const account&) = delete;
  account& operator=(const account&) = delete;
  ~account();

  /// The name of the principal.
  [[nodiscard]] const std::string& name() const noexcept { return principal_->name(); }
  [[nodiscard]] std::uint64_t used(resource resource) const noexcept {
    return principal_->used(resource);
  }

 private:
  friend class budget;
  budget& of_;
  std::string key_;
  std::shared_ptr<node> principal_;
  std::shared_ptr<node> uid_;  ///< null: not known
};

/// Limits of the claimed bytes of segments; 0: no limit.
struct quota {
  std::uint64_t host_bytes = 0;
  std::uint64_t gpu_bytes = 0;  ///< of each GPU
  friend bool operator==(const quota&, const quota&) = default;
};

/// The quotas of a domain.
struct quotas {
  quota domain = {};
  quota principal = {};  ///< of each; processes that are not vouched for are one
  std::map<std::uint32_t, quota> uids = {};
  friend bool operator==(const quotas&, const quotas&) = default;
};

/// What one node uses of one resource.
struct node_usage {
  level kind = level::domain;
  std::string name;
  resource what = resource::memory_bytes;
  std::string gpu;  ///< its UUID, for gpu_bytes
  std::uint64_t used = 0;
  std::uint64_t limit = 0;  ///< 0: none
};

/// What the principals of a domain use; those that are not vouched for are one. The rows and
/// `others` add up to what the domain uses, of each resource.
struct principal_usages {
  struct row {
    std::string name;
    node::amounts used{};
  };
  std::vector<row> largest;  ///< by bytes of segments, then by memory
  node::amounts others{};    ///< of those that are not in `largest`
  std::size_t other_count = 0;
};

/// One domain's part of the budget tree (docs/adr/0037): process, domain, principal, and beside the
/// principal the uid. What is taken is counted in each of them. Grants cannot be reclaimed, so each
/// request must be within the capacity of each node, and within the principal's share of the
/// domain, which is two rules:
///  - A principal holds at most `share_factor` times what is free (a dynamic threshold: Choudhury
///    and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): a
///    single one gets 8/9 of the total, and some is always free for a new one.
///  - Of n principals that hold any, each holds at most 8/(8n+1) of the total, or as much as is
///    free: two get half each, and can borrow what others do not use up to half.
///
/// A small floor is granted as long as anything is left, and a part is reserved for the operator:
/// the broker's own uid. Processes that are not vouched for are children of one principal.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class budget {
 public:
  static constexpr std::uint64_t share_factor = 8;
  using amounts = node::amounts;

  /// Capacities by resource; 0: no limit. `process` may be null: the only domain of the process.
  /// Memory is taken `memory_copies` times: 2 if what is charged is also in a journal.
  budget(const amounts& capacity,
         std::shared_ptr<process_budget> process,
         std::uint64_t memory_copies = 1);
  budget(const budget&) = delete;
  budget& operator=(const budget&) = delete;
  ~budget();

  /// Returns the account of a principal and a uid; creates it if there is none.
  [[nodiscard]] std::shared_ptr<account> account_of(const principal& principal,
                                                    std::optional<std::uint32_t> uid = {});
  /// For `item`, valid for a call that takes something of the GPU next. Throws quota_exceeded:
  /// segments are on too many GPUs already, and what is charged does not exist yet.
  [[nodiscard]] std::uint32_t number_of_gpu(account& account,
                                            std::string_view uuid,
                                            bool exists = false);

  /// Replaces the quotas. What is above a lower quota stays, and nothing more is granted.
  void set_quotas(quotas values);
  [[nodiscard]] const quotas& given_quotas() const noexcept { return quotas_; }

  /// Takes `amount` of `item` and returns nullopt, or returns why it is refused. `is_operator`: the
  /// request is from the broker's own uid, for which only limits apply, and no share.
  [[nodiscard]] std::optional<error> take(account& account,
                                          const item& item,
                                          std::uint64_t amount,
                                          bool is_operator = false);
  /// The same without an error text, for frequent requests.
  [[nodiscard]] bool try_take(account& account,
                              const item& item,
                              std::uint64_t amount,
                              bool is_operator = false) noexcept;
  /// Takes without a check, for what exists already, such as bytes that a peer has not read.
  void charge(account& account, const item& item, std::uint64_t amount) noexcept;
  void release(account& account, const item& item, std::uint64_t amount) noexcept;
  /// Returns false if the principal holds more than it could take now: it must release some first.
  [[nodiscard]] bool within_share(const account& account, const item& item) const noexcept;

  /// The used amount; for gpu_bytes that of all GPUs together.
  [[nodiscard]] std::uint64_t used(resource resource) const noexcept {
    return whole_->used(resource);
  }
  /// On this GPU.
  [[nodiscard]] std::uint64_t used_on(std::string_view uuid) const noexcept;
  [[nodiscard]] std::uint64_t capacity(resource resource) const noexcept {
    return whole_->capacity(resource);
  }
  /// The usage of the domain, and of the principals and uids that use the most, at most
  /// `max_nodes`; without resources that are neither used nor limited.
  [[nodiscard]] std::vector<node_usage> usages(std::size_t max_nodes) const;
  /// The usage of the domain: each resource, used or not; gpu_bytes for each GPU with any.
  [[nodiscard]] std::vector<node_usage> own_usages() const;
  /// Throws std::bad_alloc.
  [[nodiscard]] principal_usages usages_of_principals(std::size_t max_rows) const;
  /// Nodes of principals and uids.
  [[nodiscard]] std::size_t node_count() const noexcept { return nodes_.size(); }

 private:
  friend class account;
  friend class node;
  /// Why something is refused. `at` null: the process does.
  struct verdict {
    const node* at = nullptr;
    bool is_share = false;
  };
  using node_key = std::pair<level, std::string>;

  [[nodiscard]] std::shared_ptr<node> node_of(level kind,
                                              const std::string& name,
                                              const std::shared_ptr<node>& parent,
                                              std::optional<std::uint32_t> uid = {});
  /// Returns nullopt if the nodes below the process grant it.
  [[nodiscard]] std::optional<verdict> refused(const account& account,
                                               const item& item,
                                               std::uint64_t amount,
                                               bool is_operator) const noexcept;
  [[nodiscard]] bool take_of_process(const item& item, std::uint64_t amount) noexcept;
  void set_capacity(node& node) const noexcept;
  void add_usages(std::vector<node_usage>& usages, const node& node) const;
  void add(account& account, const item& item, std::uint64_t amount) noexcept;
  void remove(account& account, const item& item, std::uint64_t amount) noexcept;
  [[nodiscard]] error refusal(const account& account,
                              const item& item,
                              std::uint64_t amount,
                              const verdict& why) const;

  /// What is counted for an amount that a caller takes or releases.
  [[nodiscard]] std::uint64_t counted(const item& noun, std::uint64_t amount) const noexcept;

  std::uint64_t memory_copies_;
  std::shared_ptr<process_budget> process_;
  quotas quotas_;
  std::vector<std::string> gpus_;  ///< UUIDs by number; one that is not used can be replaced
  std::map<node_key, std::weak_ptr<node>> nodes_;
  std::map<std::string, std::weak_ptr<account>> accounts_;
  std::shared_ptr<node> whole_;
};

/// A leaf of the tree: charges of one session or segment; returned on destruction.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class charges {
 public:
  charges() = default;
  charges(budget& budget, std::shared_ptr<account> account, bool is_operator) noexcept
      : of_(&budget), who_(std::move(account)), is_operator_(is_operator) {}
  charges(charges&& other) noexcept
      : of_(std::exchange(other.of_, nullptr)),
        who_(std::move(other.who_)),
        is_operator_(other.is_operator_),
        gpu_(std::exchange(other.gpu_, no_gpu)),
        held_(std::exchange(other.held_, {})) {}
  charges& operator=(charges&& other) noexcept {
    if (this != &other) {
      reset();
      of_ = std::exchange(other.of_, nullptr);
      who_ = std::move(other.who_);
      is_operator_ = other.is_operator_;
      gpu_ = std::exchange(other.gpu_, no_gpu);
      held_ = std::exchange(other.held_, {});
    }
    return *this;
  }
  charges(const charges&) = delete;
  charges& operator=(const charges&) = delete;
  ~charges() { reset(); }

  /// Throws the error that `budget::take` returns. Not for gpu_bytes.
  void take(resource resource, std::uint64_t amount);
  /// Bytes on one GPU. Precondition: none are held, and none of host memory. Throws as `take`.
  void take_on(std::string_view gpu, std::uint64_t amount);
  /// The same without a check, for what exists already. Throws std::bad_alloc.
  void charge_on(std::string_view gpu, std::uint64_t amount);
  [[nodiscard]] bool try_take(resource resource, std::uint64_t amount) noexcept;
  /// Takes without a check. Not for gpu_bytes.
  void charge(resource resource, std::uint64_t amount) noexcept;
  void release(resource resource, std::uint64_t amount) noexcept;
  void reset() noexcept;

  /// Not of gpu_bytes.
  [[nodiscard]] std::uint64_t held(resource resource) const noexcept {
    return held_[static_cast<std::size_t>(resource)];
  }
  [[nodiscard]] bool within_share(resource resource) const noexcept {
    return is_operator_ || of_->within_share(*who_, resource);
  }
  /// Null only in a moved-from object.
  [[nodiscard]] const std::shared_ptr<account>& who() const noexcept { return who_; }

 private:
  static constexpr std::uint32_t no_gpu = ~std::uint32_t{0};
  void keep_on(std::uint32_t gpu, std::uint64_t amount) noexcept;

  budget* of_ = nullptr;
  std::shared_ptr<account> who_;
  bool is_operator_ = false;
  /// `held_` has bytes of this GPU in the place of host_bytes: a segment is in one memory.
  std::uint32_t gpu_ = no_gpu;
  std::array<std::uint64_t, resource_count - 1> held_{};
};

}  // namespace gpushm::core
