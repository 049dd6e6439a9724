// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/segments/device_loss.hpp"
#include "base/segments/segment_facts.hpp"
#include "core/budget.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// A connection, numbered by the broker; 0 is none.
using session_id = std::uint64_t;

/// The process at the other end of a connection. An unknown uid is never a key.
struct peer {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  bool uid_known = false;
  /// The principal that its usage is charged to; an empty key: the uid, if known.
  [[no_unique_address]] core::principal principal = {};  // the next member is in its padding
  /// Not known to be outside other containers, whose root can take any uid: the broker's uid makes
  /// it no operator.
  bool is_foreign = false;
  friend bool operator==(const peer&, const peer&) = default;
};

/// Who has caused something, also after its session has ended. Null: the broker itself.
using actor = std::shared_ptr<const peer>;

/// One connection's claim on a segment, for all users in that process. `count` is the number of
/// replies that granted it; the lease ends when the connection has released all of them, so that a
/// release cannot overtake an open in flight.
struct lease {
  session_id holder = 0;
  std::uint32_t count = 0;
  bool used = false;  ///< a part of it was released after the memory had been mapped
  bool kept = false;  ///< its holder has reported it since it has resumed another session
  friend bool operator==(const lease&, const lease&) = default;
};

/// Metadata as published. Shared with packets in flight, and charged until the last of them is
/// sent.
struct metadata_block {
  std::vector<std::byte> bytes;
  std::shared_ptr<const charges> held;
};

/// Data that the caller attaches to a segment or a session and that is opaque to the domain:
/// descriptors, a socket. Released when the segment is freed or the session is erased; destroyed
/// with the last reference.
struct payload {
  payload() = default;
  payload(const payload&) = delete;
  payload& operator=(const payload&) = delete;
  virtual ~payload() = default;
};

/// The broker's record of a segment.
struct segment : base::reservation, std::enable_shared_from_this<segment> {
  gpushm::generation generation = 0;
  std::uint32_t slot = 0;
  std::uint32_t attached_chunks = 0;
  [[no_unique_address]] peer creator;  // the next members are in its padding
  bool published : 1 = false;
  bool is_versioned : 1 = false;  ///< it belongs to a version
  bool complete : 1 = false;      ///< a part that its creator has published; its version may not be
  bool removed : 1 = false;
  bool exporter_gone : 1 =
      false;          ///< its exporter has died; false again once it is removed by name
  bool used = false;  ///< a lease other than the creator's ended since the last `released`
  loss_cause lost_by = loss_cause::none;  ///< see `loss`
  std::uint16_t lost_by_xid = 0;
  session_id creator_session = 0;  ///< 0 once that session has ended
  std::vector<lease> leases;
  std::shared_ptr<const metadata_block> metadata;  ///< null: none
  /// Charged to the creator, also after its session ends. Shared with objects that outlive the
  /// segment.
  std::shared_ptr<charges> held;
  std::shared_ptr<core::payload> payload;

  /// Returns the loss of its GPU while it existed; it is also removed then.
  [[nodiscard]] base::device_loss loss() const noexcept { return {lost_by, lost_by_xid}; }
  void set_loss(const base::device_loss& loss) noexcept {
    constexpr std::uint32_t largest = 0xFFFF;  // the driver's are below 1,000
    const bool fits = loss.xid <= largest;
    lost_by = fits ? loss.cause : loss_cause::reported;
    lost_by_xid = fits ? static_cast<std::uint16_t>(loss.xid) : std::uint16_t{0};
  }

  /// As clients see it in the state table.
  [[nodiscard]] segment_state state() const noexcept {
    return loss()          ? segment_state::device_lost
           : exporter_gone ? segment_state::exporter_gone
           : removed       ? segment_state::removed
                           : segment_state::live;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return metadata ? metadata->bytes.size() : 0;
  }
};

}  // namespace gpushm::core
