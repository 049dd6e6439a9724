// SPDX-License-Identifier: Apache-2.0
#include "weights/hash.hpp"

// The functions are compiled into this file: no library is needed at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <vector>

#include "base/hex.hpp"

namespace gpushm::weights {

std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash_text(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return base::hex_text(std::span(canonical.digest));
}

std::string tensor_hash(std::span<const std::uint64_t> pieces) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(pieces.size() * sizeof(std::uint64_t));
  for (const std::uint64_t each : pieces) {
    for (unsigned shift = 0; shift != 64; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(each >> shift));
    }
  }
  XXH64_canonical_t canonical;
  XXH64_canonicalFromHash(&canonical, XXH3_64bits(bytes.data(), bytes.size()));
  return base::hex_text(std::span(canonical.digest));
}

}  // namespace gpushm::weights
