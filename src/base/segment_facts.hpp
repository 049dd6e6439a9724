// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::base {

/// What a segment is, from its reservation to its end: what its creator said. The broker's
/// segments, and what the protocol says of them, have it as their base.
struct segment_facts {
  std::string name;
  std::uint64_t size_bytes = 0;       ///< what was asked for
  std::uint64_t allocated_bytes = 0;  ///< what it takes
  device_id device;
  std::uint32_t chunk_count = 0;
  gpushm::backend backend = gpushm::backend::host;
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  std::uint64_t offset_bytes = 0;  ///< of the segment in its chunks or allocation
  friend bool operator==(const segment_facts&, const segment_facts&) = default;
};

/// What a creator asks for.
struct reservation : segment_facts {
  std::vector<std::byte> ticket = {};  ///< not read by the broker, only handed on
  friend bool operator==(const reservation&, const reservation&) = default;
};

}  // namespace gpushm::base
