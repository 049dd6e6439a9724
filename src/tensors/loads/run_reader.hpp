// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensors/files/layout.hpp"
#include "tensors/loads/block_buffer.hpp"
#include "tensors/loads/piece_reader.hpp"

namespace gpushm::tensors {

/// Reads pieces whose bytes are runs of a file: those that are close to each other together, with
/// what is between them, into a buffer of its own.
///
/// Thread-safety: unsafe.
class run_reader {
 public:
  /// Both must exist longer.
  run_reader(const piece_reader& reader, const layout& plan) : reader_(reader), plan_(plan) {}

  /// Reads `bytes` bytes of a strided piece from its byte `first` into `target`, and returns
  /// `target`. Blocks. Throws `error`: out_of_memory, and as `piece_reader::read`.
  const std::byte* read(const piece& piece,
                        std::uint64_t first,
                        std::uint64_t bytes,
                        std::byte* target);

 private:
  const piece_reader& reader_;
  const layout& plan_;
  block_buffer buffer_;  ///< from the first strided piece on
};

}  // namespace gpushm::tensors
