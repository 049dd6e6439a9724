// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "gpushm/segment.hpp"
#include "weights/layout.hpp"

namespace gpushm::weights {

/// Copies pieces of one thread into a segment, step by step: reads of the next steps overlap with
/// the copies of those before.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class copy_lane {
 public:
  /// Reports that a piece is in the segment. Must not throw.
  using done = std::function<void(std::size_t piece)>;
  /// Room for what a read brings in addition to the step, because the disk's blocks are larger.
  static constexpr std::size_t block_bytes = 4'096;
  static constexpr std::size_t buffer_bytes = step_bytes + 2 * block_bytes;

  /// For the memory of `into`, which must exist longer. Throws `error`: out_of_memory,
  /// driver_error.
  [[nodiscard]] static std::unique_ptr<copy_lane> open(segment& into, done report);

  copy_lane() = default;
  copy_lane(const copy_lane&) = delete;
  copy_lane& operator=(const copy_lane&) = delete;
  virtual ~copy_lane() = default;

  /// `buffer_bytes` at a block's boundary that no copy uses any more. Blocks until one before has
  /// ended.
  [[nodiscard]] virtual std::byte* buffer() = 0;
  /// Copies these parts, which follow each other from `first` in that buffer. `completes`: the
  /// piece of which they are the last ones.
  virtual void copy(const std::byte* first,
                    std::span<const part> parts,
                    std::optional<std::size_t> completes) = 0;
  /// Blocks until all copies have ended.
  virtual void finish() = 0;
};

}  // namespace gpushm::weights
