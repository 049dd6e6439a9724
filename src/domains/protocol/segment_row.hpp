// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::domains {

/// The largest number of rows in one packet.
inline constexpr std::size_t max_segment_rows = 64;
/// The largest number of holders in one row.
inline constexpr std::size_t max_holders = 4;

/// What operators see of a segment, besides what its users see. Also of one that has lost its name
/// and that a process still has open.
struct segment_row {
  std::string name;
  gpushm::generation generation = 0;
  std::string principal;  ///< that it is charged to, as in `principal_statistics`
  std::uint32_t creator_uid = 0;
  bool creator_alive = false;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  std::string device;  ///< "host", or the UUID of the GPU or MIG instance
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  segment_state state = segment_state::live;
  bool published = false;
  std::uint32_t leases = 0;
  std::vector<std::string> holders = {};  ///< principals of those, at most `max_holders`
  std::uint64_t age_ms = 0;               ///< since its creation
  bool is_age_known = false;              ///< false: it is older, from before this process

  /// Whether `remove_unheld` removes it.
  [[nodiscard]] bool is_unheld() const noexcept {
    return lifetime == gpushm::lifetime::persistent && published && leases == 0 &&
           (state == segment_state::live || state == segment_state::exporter_gone);
  }
  friend bool operator==(const segment_row&, const segment_row&) = default;
};

}  // namespace gpushm::domains
