// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::base {

/// The properties of a segment, set by its creator, from reservation to destruction. The base of
/// the broker's segments and of the protocol's segment descriptions.
struct segment_facts {
  std::string name;
  std::uint64_t size_bytes = 0;       ///< requested size
  std::uint64_t allocated_bytes = 0;  ///< allocated size
  device_id device;
  std::uint32_t chunk_count = 0;
  gpushm::backend backend = gpushm::backend::host;
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  std::uint64_t offset_bytes = 0;  ///< of the segment in its chunks or allocation
  friend bool operator==(const segment_facts&, const segment_facts&) = default;
};

/// A creator's request.
struct reservation : segment_facts {
  std::vector<std::byte> ticket = {};  ///< not read by the broker, only passed on
  /// May have the name until this segment is published, which moves the name; 0: none.
  gpushm::generation replaces = 0;
  friend bool operator==(const reservation&, const reservation&) = default;
};

}  // namespace gpushm::base
