// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/segment_facts.hpp"
#include "core/budget.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// A connection, numbered by the broker; 0 is none.
using session_id = std::uint64_t;

/// Who a connection belongs to. A uid that is not known is never a key.
struct peer {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  bool uid_known = false;
  /// Whom its usage is charged to; an empty key: the uid, where it is known.
  core::principal principal = {};
};

/// One connection's claim on a segment, however many users it has in that process. `count` is how
/// many answers gave it to the connection; the lease ends when the connection has accounted for all
/// of them, so that a release cannot overtake an open that is under way.
struct lease {
  session_id holder = 0;
  std::uint32_t count = 0;
  bool used = false;  ///< a part of it was given back after the memory had been mapped
};

/// Metadata as published. Shared with packets that are on their way, and charged as long as any of
/// them has it.
struct metadata_block {
  std::vector<std::byte> bytes;
  std::shared_ptr<const charges> held;
};

/// What the surroundings keep for a segment or a session, and the domain knows nothing of:
/// descriptors, a socket. Destroyed when the segment is freed, or the session forgotten, unless
/// something else has it.
struct payload {
  payload() = default;
  payload(const payload&) = delete;
  payload& operator=(const payload&) = delete;
  virtual ~payload() = default;
};

/// What the broker knows of a segment.
struct segment : base::reservation, std::enable_shared_from_this<segment> {
  gpushm::generation generation = 0;
  std::uint32_t slot = 0;
  std::uint32_t attached_chunks = 0;
  bool published = false;
  bool removed = false;
  bool used = false;  ///< a lease other than the creator's ended since the last `released`
  peer creator;
  session_id creator_session = 0;  ///< 0 once that connection is gone
  std::vector<lease> leases;
  std::shared_ptr<const metadata_block> metadata;  ///< null: none
  /// Charged to the creator, also after it is gone. Shared with what outlives the segment on its
  /// behalf.
  std::shared_ptr<charges> held;
  std::shared_ptr<core::payload> payload;

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return metadata ? metadata->bytes.size() : 0;
  }
};

}  // namespace gpushm::core
