// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensors/files/hash_kernels.h"

namespace gpushm::tensors {

/// XXH3-64: finds accidents, and differences between models; not a protection against attackers.
/// Thread-safe.
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;
/// XXH3-128 as 32 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::string_view bytes);
/// The hash of a tensor of which these are the hashes of its pieces (`tensor::hash`).
[[nodiscard]] std::string tensor_hash(std::span<const std::uint64_t> pieces);

/// The same as `hash_of`, of bytes that come one after the other, so that each is hashed while it
/// is in the CPU's cache.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class running_hash {
 public:
  running_hash() noexcept;
  /// As for one that is new.
  void restart() noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  /// The hash of all bytes since the start.
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  alignas(GPUSHM_HASH_STATE_ALIGNMENT) std::array<std::byte, GPUSHM_HASH_STATE_BYTES> state_;
};

/// An implementation for some CPUs.
struct hash_variant {
  std::string_view name;
  const gpushm_hash_kernel& kernel;
};
/// Those that this CPU can run, the fastest first. For tests and benchmarks: all have the same
/// results.
[[nodiscard]] std::vector<hash_variant> hash_variants();

}  // namespace gpushm::tensors
