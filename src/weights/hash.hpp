// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpushm::weights {

/// XXH3-64: finds accidents, and differences between models; not a protection against attackers.
/// Thread-safe.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;
/// XXH3-128 as 32 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::string_view bytes);
/// The hash of a tensor of which these are the hashes of its pieces (`tensor::hash`).
[[nodiscard]] std::string tensor_hash(std::span<const std::uint64_t> pieces);

}  // namespace gpushm::weights
