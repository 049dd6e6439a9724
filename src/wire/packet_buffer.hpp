// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "wire/messages.hpp"

namespace gpushm::wire {

/// Room for one packet. Its bytes are undefined until one is received: zeros would cost a page
/// fault for each 4 KiB, and packets are mostly small.
class packet_buffer {
 public:
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {memory_.get(), max_packet_bytes};
  }

 private:
  // NOLINTNEXTLINE(*-avoid-c-arrays): a vector would be zeroed
  std::unique_ptr<std::byte[]> memory_ =
      std::make_unique_for_overwrite<std::byte[]>(max_packet_bytes);  // NOLINT(*-avoid-c-arrays)
};

}  // namespace gpushm::wire
