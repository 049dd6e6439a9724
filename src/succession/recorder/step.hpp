// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/domain.hpp"

namespace gpushm::succession {

/// Work that can end the broker's process, if it has a fault. Stored in `journal::death_notes`:
/// never renumber.
enum class step_kind : std::uint8_t {
  request = 0,        ///< a packet of the session
  open_rest = 1,      ///< the next names of its open_many
  replies = 2,        ///< packets to it
  end = 3,            ///< its end, or what its last packets ask for
  fence = 4,          ///< what its end has left, once it can no longer write
  work = 5,           ///< of the domain
  deadlines = 6,      ///< of the domain
  accept = 7,         ///< of connections, which are no sessions yet: of the domain
  receive = 8,        ///< what is done with a packet of the session before it is a request
  receive_event = 9,  ///< the same on its event lane
  watch = 10,         ///< what the end of its process, or of its descriptors' receipt, asks for
  catch_up = 11,      ///< of the domain, after a lack of memory
  returns = 12,       ///< the end of the time for handing back: of the domain
};

/// As `journal::death_notes` has it. Session 0: the domain. Not 0, because no request is the
/// domain's.
struct step_note {
  step_kind kind = step_kind::request;
  core::session_id session = 0;

  static constexpr unsigned session_bits = 56;
  [[nodiscard]] constexpr std::uint64_t value() const noexcept {
    return (std::uint64_t{static_cast<std::uint8_t>(kind)} << session_bits) | session;
  }
};

/// Returns the session of a `step_note`; 0: the domain.
[[nodiscard]] constexpr core::session_id session_in(std::uint64_t note) noexcept {
  return note & ((std::uint64_t{1} << step_note::session_bits) - 1);
}

}  // namespace gpushm::succession
