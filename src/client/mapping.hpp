// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/segment_lease.hpp"
#include "gpushm/types.hpp"
#include "memory/backend.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

/// How many mappings there are of a GPU's memory for other GPUs, of 512 MiB or more, and of less.
using peer_groups = std::map<std::pair<std::string, bool>, std::size_t>;

/// What an open says that may find a mapping.
struct open_words {
  std::size_t hash;  ///< of the others
  std::string name;
  std::string device;  ///< as the caller of open wrote it
  gpushm::access access;
};

/// Memory mapped into this process for one device and access, and the lease that it stands on.
/// Shared by all its users here; what the table keeps.
///
/// Distinct objects: safe. Shared objects: safe.
class mapping {
 public:
  mapping(std::shared_ptr<segment_lease> lease,
          std::shared_ptr<memory::region> region,
          gpushm::access access,
          const device_id& user)
      : mapping(std::nullopt, std::move(lease), std::move(region), access, user) {}
  /// Imported without a broker: nobody leases it.
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
  [[nodiscard]] segment_lease* lease() const noexcept { return lease_.get(); }
  [[nodiscard]] const std::shared_ptr<segment_lease>& shared_lease() const noexcept {
    return lease_;
  }
  [[nodiscard]] memory::region& region() const noexcept { return *region_; }
  [[nodiscard]] gpushm::access access() const noexcept { return access_; }
  /// The device that uses it, as `device_id::text`.
  [[nodiscard]] const std::string& device() const noexcept { return device_; }
  /// Of memory that another GPU than its own uses.
  [[nodiscard]] bool is_peers() const noexcept { return is_peers_; }
  /// The device that uses it, as CUDA numbers it here; -1: the host.
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] segment_state state() const noexcept {
    return lease_ ? lease_->state() : segment_state::unknown;
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
        is_peers_(device_ != info().device.text()),
        ordinal_(memory::local_ordinal(user)) {}

  /// The table's notes; with its lock held.
  struct notes {
    std::size_t users = 0;
    bool opened = false;  ///< by name; a creator's own mapping is not kept for nobody
    bool unused = false;  ///< in the list of those that nobody uses
    /// The table's share, which is here while somebody uses the mapping, and in that list while
    /// nobody does. One, or none: the table does not have it.
    std::list<std::shared_ptr<mapping>> owner;
    std::list<std::shared_ptr<mapping>>::iterator place;  ///< of that one
    std::vector<const open_words*> found_by;
    std::optional<peer_groups::iterator> group;  ///< where it is counted
  };

  std::optional<wire::segment> facts_;
  std::shared_ptr<segment_lease> lease_;
  std::shared_ptr<memory::region> region_;  // goes before the lease: a broker that frees finds it
  gpushm::access access_;                   // unmapped
  std::string device_;
  bool is_peers_;
  int ordinal_;
  notes notes_;
};

}  // namespace gpushm::detail
