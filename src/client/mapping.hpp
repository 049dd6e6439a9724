// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/segment_lease.hpp"
#include "gpushm/types.hpp"
#include "memory/backend.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

/// Memory mapped into this process for one device and access, and the lease that it stands on.
/// Shared by all its users here; what the table keeps.
///
/// Distinct objects: safe. Shared objects: safe.
class mapping {
 public:
  mapping(std::shared_ptr<segment_lease> lease,
          std::shared_ptr<memory::region> region,
          gpushm::access access,
          std::string device)
      : lease_(std::move(lease)),
        region_(std::move(region)),
        access_(access),
        device_(std::move(device)) {}
  /// Imported without a broker: nobody leases it.
  mapping(wire::segment facts, std::shared_ptr<memory::region> region, gpushm::access access)
      : facts_(std::move(facts)), region_(std::move(region)), access_(access) {}
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
  [[nodiscard]] segment_state state() const noexcept {
    return lease_ ? lease_->state() : segment_state::unknown;
  }

 private:
  friend class lease_table;
  /// The table's notes; with its lock held.
  struct notes {
    std::size_t users = 0;
    bool opened = false;  ///< by name; a creator's own mapping is not kept for nobody
    bool known = false;   ///< counted in the table's groups
    bool unused = false;  ///< in the list of those that nobody uses
    std::list<std::shared_ptr<mapping>>::iterator place;
  };

  std::optional<wire::segment> facts_;
  std::shared_ptr<segment_lease> lease_;
  std::shared_ptr<memory::region> region_;  // goes before the lease: a broker that frees finds it
  gpushm::access access_;                   // unmapped
  std::string device_;
  notes notes_;
};

}  // namespace gpushm::detail
