// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "protocol/wire/messages.hpp"

namespace gpushm::wire {

/// Room for one packet. Its bytes are undefined until one is received: zeros would cost a page
/// fault for each 4 KiB, and packets are mostly small.
class packet_buffer {
 public:
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {memory_.get(), max_packet_bytes};
  }

 private:
  using memory = std::byte[];  // NOLINT(*-avoid-c-arrays): a vector would be zeroed
  std::unique_ptr<memory> memory_ = std::make_unique_for_overwrite<memory>(max_packet_bytes);
};

}  // namespace gpushm::wire
