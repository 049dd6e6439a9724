// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpushm::cli {

/// Incremental CRC-32C (Castagnoli, as in iSCSI and ext4; RFC 3720). Uses the processor's
/// instruction if it has one.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class crc32c {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = ~std::uint32_t{0};
};

namespace detail {
/// In portable C++, for processors without the instruction; tests compare the two.
[[nodiscard]] std::uint32_t crc32c_portable(std::uint32_t state,
                                            std::span<const std::byte> bytes) noexcept;
}  // namespace detail

}  // namespace gpushm::cli
