// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::sync {

/// Where timelines are, as the ticket of a timeline has it (docs/protocol.md, "Timelines").
struct timeline_place {
  std::string page;                   ///< the name of its segment
  gpushm::generation generation = 0;  ///< of the page, not 0
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  friend bool operator==(const timeline_place&, const timeline_place&) = default;
};

[[nodiscard]] std::vector<std::byte> encode(const timeline_place& place);
/// Returns nullopt if the bytes, which another process has chosen, are not such a ticket.
[[nodiscard]] std::optional<timeline_place> decode_place(std::span<const std::byte> ticket);

}  // namespace gpushm::sync
