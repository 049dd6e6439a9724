// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::core {

/// A connection, numbered by the broker; 0 is nobody.
using session_id = std::uint64_t;

/// Who a connection belongs to. A uid that is not known is never a key.
struct peer {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  bool uid_known = false;
};

/// One connection's claim on a segment, however many users it has in that process. `count` is how
/// many answers gave it to the connection; the lease ends when the connection has accounted for all
/// of them, so that a release cannot overtake an open that is under way.
struct lease {
  session_id holder = 0;
  std::uint32_t count = 0;
};

/// What the broker knows of a segment; no descriptors here.
struct segment {
  std::string name;
  gpushm::generation generation = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint32_t slot = 0;
  std::uint32_t chunk_count = 0;
  std::uint32_t attached_chunks = 0;
  gpushm::backend backend = gpushm::backend::host;
  gpushm::lifetime lifetime = gpushm::lifetime::leased;
  bool published = false;
  bool removed = false;
  device_id device;
  peer creator;
  session_id creator_session = 0;  ///< 0 once that connection is gone
  std::vector<lease> leases;
  std::vector<std::byte> metadata;
  std::uint64_t offset_bytes = 0;
  std::vector<std::byte> descriptor;  ///< not read, only handed on
};

}  // namespace gpushm::core
