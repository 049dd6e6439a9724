// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "gpushm/tensors.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/files/model_files.hpp"

namespace gpushm::tensors {

/// Reads pieces of files into buffers of `copy_lane`. io_uring is not used: container runtimes'
/// seccomp profiles refuse it.
///
/// Thread-safety: distinct objects: safe; shared objects: safe (immutable).
class piece_reader {
 public:
  /// `files` must exist longer. Throws `error`: system_error, too_many_descriptors.
  piece_reader(std::span<const model_file> files, reading reading);

  /// Reads into `buffer`, which begins with a block and is two blocks larger. Returns the first
  /// byte: at the same place of a block as in the file, because the kernel copies faster to it.
  /// Blocks. Throws `error`: invalid_file (the file has become
  /// shorter), system_error.
  [[nodiscard]] const std::byte* read(const file_range& range, std::byte* buffer) const;
  /// Whether this file is read with O_DIRECT.
  [[nodiscard]] bool is_direct(std::uint32_t file) const {
    return static_cast<bool>(direct_[file]);
  }
  /// How many of the `left` bytes from `offset` to read into a buffer of a `copy_lane`: the next
  /// read begins with a block.
  [[nodiscard]] static std::uint64_t step(std::uint64_t offset, std::uint64_t left);

 private:
  std::span<const model_file> files_;
  std::vector<base::guarded_fd> direct_;  ///< one for each file; empty: through the page cache
};

}  // namespace gpushm::tensors
