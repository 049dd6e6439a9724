// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tensors/files/model_files.hpp"
#include "tensors/files/strided.hpp"
#include "tensors/files/tensor.hpp"

namespace gpushm::tensors {

/// The alignment of each tensor in a segment, for vector loads of kernels. DLPack (1.0: 256 bytes
/// recommended), JAX (64) and NumPy require no more.
inline constexpr std::uint64_t tensor_alignment = 256;
/// Bytes that one thread reads, and that are complete together.
inline constexpr std::uint64_t piece_bytes = hashed_bytes;
/// Bytes of a piece that are read and hashed at a time: they stay in the cache of a core until they
/// are hashed.
inline constexpr std::uint64_t step_bytes = 1U << 20U;

/// Bytes of a file that follow each other.
struct file_range {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
/// What one thread reads: bytes of a file that follow each other, or a part of one tensor whose
/// bytes do not.
struct piece {
  static constexpr std::size_t contiguous = std::numeric_limits<std::size_t>::max();

  std::uint32_t file = 0;
  std::uint64_t file_offset = 0;  ///< of a strided one that of the tensor's first run in the file
  std::uint64_t bytes = 0;        ///< at most `piece_bytes`
  std::size_t first_part = 0;
  std::size_t parts = 0;
  std::size_t strided = contiguous;  ///< or an index in `layout::strided`
  std::uint64_t first_byte = 0;      ///< of a strided one, from the tensor's first byte
};
/// A hashed piece of one tensor, within a `piece`.
struct part {
  std::uint64_t segment_offset = 0;
  std::uint64_t bytes = 0;
};

/// Where everything of a model is: the tensors, each aligned, and what describes them.
struct layout {
  tensor_list table;  ///< with places in the segment, and hashes of zeros
  std::vector<piece> pieces;
  std::vector<strided_source> strided;
  std::vector<part> parts;              ///< of all pieces, in the order of `table`
  std::vector<std::size_t> first_part;  ///< of each tensor of `table`; one more: the end
  std::uint64_t tensor_bytes = 0;       ///< that are read
  std::uint64_t table_offset = 0;
};

/// The table of a plan, with the hashes of its parts.
[[nodiscard]] tensor_list table_with(const layout& plan, const std::uint64_t* hashes);
/// Files in their order, tensors in the order of their places.
[[nodiscard]] layout plan(std::span<const model_file> files);

/// The first multiple of `tensor_alignment` that is not smaller.
[[nodiscard]] constexpr std::uint64_t aligned(std::uint64_t offset) {
  return (offset + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
}

}  // namespace gpushm::tensors
