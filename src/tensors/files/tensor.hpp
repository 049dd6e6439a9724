// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/files/dtype.hpp"

namespace gpushm::tensors {

/// A tensor in a file or in a segment.
struct tensor {
  std::string name;
  dtype type;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  ///< of its bytes, from the first byte of all tensors
  std::uint64_t end = 0;
  /// In elements, one for each dimension; empty: as in C, the last dimension first.
  std::vector<std::int64_t> strides;
  /// XXH3-64 of the XXH3-64 (little-endian) of each `hashed_bytes` of it; 16 hexadecimal digits.
  /// Empty if unknown.
  std::string hash;
  /// The name of its element type where the safetensors name is not enough; may be empty.
  std::string framework_dtype;
  friend bool operator==(const tensor&, const tensor&) = default;
};

/// Pieces of which `tensor::hash` is made.
inline constexpr std::uint64_t hashed_bytes = 4U << 20U;

/// The largest number of dimensions of a tensor. No framework has more, so a larger tensor could be
/// loaded but not used.
inline constexpr std::size_t max_dimensions = 64;

/// Stores the bytes of a tensor of that type and shape. Returns why it has no such size, or "".
[[nodiscard]] inline std::string_view size_of(const dtype& type,
                                              std::span<const std::uint64_t> shape,
                                              std::uint64_t& bytes) {
  std::uint64_t count = 1;
  for (const std::uint64_t each : shape) {
    if (__builtin_mul_overflow(count, each, &count)) {
      return "has more than 2^64 elements";
    }
  }
  if (__builtin_mul_overflow(count, std::uint64_t{type.bits}, &count)) {
    return "has more than 2^64 bits";
  }
  bytes = count / 8;
  return count % 8 == 0 ? "" : "does not fill whole bytes";
}

using text_pairs = std::vector<std::pair<std::string, std::string>>;

/// What is in one file or segment.
struct tensor_list {
  std::vector<tensor> all;  ///< by `begin`, then `end`
  text_pairs metadata;      ///< of a file in its order, of a segment by key
  friend bool operator==(const tensor_list&, const tensor_list&) = default;
};

}  // namespace gpushm::tensors
