// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/lease/segment_lease.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Numbers of mappings of a GPU's memory for other GPUs, of 512 MiB or more (true), and of less.
using peer_groups = std::map<std::pair<std::string, bool>, std::size_t>;

/// The arguments of an open by which a mapping is found.
struct open_key {
  std::size_t hash;  ///< of the other members
  std::string name;
  std::string device;  ///< as passed to open
  gpushm::access access;
};
/// The target of these arguments. One word of the state table shows whether they still refer to it.
struct open_target {
  mapping* to = nullptr;
  /// The word of an alias; none: the name is the segment's own, and so is the word.
  std::optional<segment_lease::seen_word> alias = {};
};
using known_open = std::pair<const open_key, open_target>;

/// Memory mapped into this process for one device and access, and its lease. Shared by all its
/// users in this process; an entry of the lease table.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class mapping {
 public:
  mapping(std::shared_ptr<segment_lease> lease,
          std::shared_ptr<memory::region> region,
          gpushm::access access,
          const device_id& user)
      : mapping(std::nullopt, std::move(lease), std::move(region), access, user) {}
  /// Imported without a broker, and so without a lease.
  mapping(wire::segment facts,
          std::shared_ptr<memory::region> region,
          gpushm::access access,
          const device_id& user)
      : mapping(std::optional(std::move(facts)), nullptr, std::move(region), access, user) {}
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() = default;

  [[nodiscard]] const wire::segment& info() const noexcept {
    return lease_ ? lease_->info() : *facts_;
  }
  [[nodiscard]] gpushm::generation generation() const noexcept {
    return lease_ ? lease_->generation() : facts_->generation;
  }
  [[nodiscard]] segment_lease* lease() const noexcept { return lease_.get(); }
  [[nodiscard]] const std::shared_ptr<segment_lease>& shared_lease() const noexcept {
    return lease_;
  }
  [[nodiscard]] memory::region& region() const noexcept { return *region_; }
  [[nodiscard]] gpushm::access access() const noexcept { return access_; }
  /// The device that uses the mapping, as `device_id::text`.
  [[nodiscard]] const std::string& device() const noexcept { return device_; }
  /// True if a GPU uses memory of another GPU.
  [[nodiscard]] bool is_on_peer() const noexcept { return is_on_peer_; }
  /// The device that uses the mapping, as CUDA numbers it in this process; -1: the host.
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  /// How the region is suspended (suspend.hpp); one thread at a time suspends or resumes it.
  struct suspension {
    std::mutex mutex;
    suspend_mode mode = suspend_mode::keep;  ///< if the region is suspended
    /// All chunks of suspended memory, or none; then the broker has them.
    segment_lease::kept_chunks chunks = {};
    /// Where and how `resume` allocates memory; not `keep`.
    std::shared_ptr<const memory::backend> home = nullptr;
    memory::chunk_plan plan = {};
    std::unique_ptr<memory::region> contents = nullptr;  ///< `host`
  };
  [[nodiscard]] suspension& suspended_as() const noexcept { return suspension_; }
  /// Suspended only by this process: whether the segment has ended meanwhile is in its lease's
  /// state.
  [[nodiscard]] segment_state state() const noexcept {
    const segment_state shown = lease_ ? lease_->state() : segment_state::unknown;
    return region_->suspended() && shown != segment_state::device_lost ? segment_state::suspended
                                                                       : shown;
  }

 private:
  friend class lease_table;
  mapping(std::optional<wire::segment> facts,
          std::shared_ptr<segment_lease> lease,
          std::shared_ptr<memory::region> region,
          gpushm::access access,
          const device_id& user)
      : facts_(std::move(facts)),
        lease_(std::move(lease)),
        region_(std::move(region)),
        access_(access),
        device_(user.text()),
        is_on_peer_(device_ != info().device.text()),
        ordinal_(memory::local_ordinal(user)) {}

  /// State of the lease table; guarded by its lock.
  struct notes {
    std::size_t users = 0;
    bool unused = false;  ///< in the table's list of unused mappings
    /// The table's reference: in this list while the mapping is used, in the table's list while it
    /// is unused. At most one; none: not in the table.
    std::list<std::shared_ptr<mapping>> owner;
    std::list<std::shared_ptr<mapping>>::iterator place;  ///< of the reference in its list
    std::vector<const known_open*> names;        ///< by which it is found; none: a creator's own
    std::optional<peer_groups::iterator> group;  ///< where it is counted
  };

  std::optional<wire::segment> facts_;
  std::shared_ptr<segment_lease> lease_;
  /// Destroyed before the lease: the memory is unmapped when the broker frees it.
  std::shared_ptr<memory::region> region_;
  gpushm::access access_;
  std::string device_;
  bool is_on_peer_;
  int ordinal_;
  mutable suspension suspension_;
  notes notes_;
};

}  // namespace gpushm::client_detail
