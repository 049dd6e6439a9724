// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/hash.hpp"

// The functions are compiled into this file: no library is needed at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/text/hex.hpp"

namespace gpushm::tensors {

namespace {

const gpushm_hash_kernel& kernel() noexcept {
#ifdef GPUSHM_HASH_X86
  static const gpushm_hash_kernel& selected = []() -> const gpushm_hash_kernel& {
    if (__builtin_cpu_supports("avx512f") != 0) {
      return gpushm_hash_avx512;
    }
    return __builtin_cpu_supports("avx2") != 0 ? gpushm_hash_avx2 : gpushm_hash_baseline;
  }();
  return selected;
#else
  return gpushm_hash_baseline;
#endif
}

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept {
  return kernel().hash(bytes.data(), bytes.size());
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

// NOLINTNEXTLINE(*-pro-type-member-init): by restart()
running_hash::running_hash() noexcept {
  restart();
}

void running_hash::restart() noexcept {
  kernel().begin(state_.data());
}

void running_hash::add(std::span<const std::byte> bytes) noexcept {
  kernel().add(state_.data(), bytes.data(), bytes.size());
}

std::uint64_t running_hash::value() const noexcept {
  return kernel().value(state_.data());
}

std::vector<hash_variant> hash_variants() {
  std::vector<hash_variant> result;
#ifdef GPUSHM_HASH_X86
  if (__builtin_cpu_supports("avx512f") != 0) {
    result.push_back({"avx512", gpushm_hash_avx512});
  }
  if (__builtin_cpu_supports("avx2") != 0) {
    result.push_back({"avx2", gpushm_hash_avx2});
  }
#endif
  result.push_back({"baseline", gpushm_hash_baseline});
  return result;
}

}  // namespace gpushm::tensors
