// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/messages.hpp"

namespace gpushm_fuzz {

/// Reads decisions from fuzz input; zeros once it is used up.
class script {
 public:
  explicit script(std::span<const std::uint8_t> bytes) : left_(bytes) {}

  [[nodiscard]] bool done() const noexcept { return left_.empty(); }
  std::uint8_t byte();
  /// Below `count`, which is at most 256.
  std::size_t pick(std::size_t count) { return byte() % count; }
  /// Small, at a power of two, or any.
  std::uint64_t number();
  /// `size` bytes or what is left.
  std::span<const std::byte> bytes(std::size_t size);

 private:
  std::span<const std::uint8_t> left_;
};

/// A message of any kind whose fields are plausible more often than not. `generations` are those
/// that the broker gave out.
[[nodiscard]] gpushm::wire::body some_body(script& from,
                                           const std::vector<gpushm::generation>& generations);

/// What an exporter says to `question`, and perhaps to others; a good word more often than not.
[[nodiscard]] gpushm::wire::confirmed some_confirmed(script& from, std::uint64_t question);

}  // namespace gpushm_fuzz
