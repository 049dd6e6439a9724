// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm_fuzz {

/// Reads decisions from fuzz input; zeros after its end.
class script {
 public:
  explicit script(std::span<const std::uint8_t> bytes) : left_(bytes) {}

  [[nodiscard]] bool done() const noexcept { return left_.empty(); }
  std::uint8_t byte();
  /// Below `count`, which is at most 256.
  std::size_t pick(std::size_t count) { return byte() % count; }
  /// A small number, one near a power of two, or any number.
  std::uint64_t number();
  /// `size` bytes or the remaining ones.
  std::span<const std::byte> bytes(std::size_t size);

 private:
  std::span<const std::uint8_t> left_;
};

/// Mostly one of `generations`, which the broker returned.
[[nodiscard]] gpushm::generation some_generation(
    script& script, const std::vector<gpushm::generation>& generations);

/// A message of any kind whose fields are mostly plausible. `generations`: those that the broker
/// returned.
[[nodiscard]] gpushm::wire::body some_body(script& script,
                                           const std::vector<gpushm::generation>& generations);

/// The exporter's reply to `question`, and perhaps to others; mostly a positive verdict.
[[nodiscard]] gpushm::wire::confirmed some_confirmed(script& script, std::uint64_t question);

}  // namespace gpushm_fuzz
