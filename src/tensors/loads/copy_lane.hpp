// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "gpushm/segment.hpp"
#include "tensors/files/layout.hpp"

namespace gpushm::tensors {

/// Copies pieces of one thread into a segment: reads of the next piece overlap with the copies of
/// those before.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class copy_lane {
 public:
  /// Reports that a piece is in the segment. Must not throw.
  using done = std::function<void(std::size_t piece)>;
  /// Room for what a read brings in addition to the piece, because the disk's blocks are larger.
  static constexpr std::size_t block_bytes = 4'096;
  static constexpr std::size_t buffer_bytes = piece_bytes + 2 * block_bytes;

  /// For the memory of `into`, which must exist longer. Throws `error`: out_of_memory,
  /// driver_error.
  [[nodiscard]] static std::unique_ptr<copy_lane> open(segment& into, done report);
  /// The same for GPU `ordinal` without a segment yet: everything that takes long. `name` is for
  /// errors. Before all others call `bind`.
  [[nodiscard]] static std::unique_ptr<copy_lane> prepare(int ordinal, const std::string& name);
  /// Copies nothing: what is read is only hashed. `name` is for the error. Throws `error`:
  /// out_of_memory.
  [[nodiscard]] static std::unique_ptr<copy_lane> to_nowhere(const std::string& name, done report);

  copy_lane() = default;
  copy_lane(const copy_lane&) = delete;
  copy_lane& operator=(const copy_lane&) = delete;
  virtual ~copy_lane() = default;

  /// Once, of a lane that `prepare` has made: as `open`. Precondition: `into` is on its GPU.
  virtual void bind(segment& into, done report) = 0;
  /// The number of its GPU in this process; -1: none.
  [[nodiscard]] virtual int ordinal() const noexcept = 0;
  /// Returns `buffer_bytes` at a block's boundary for the next piece, which no copy uses. Blocks
  /// until a previous copy has ended.
  [[nodiscard]] virtual std::byte* buffer() = 0;
  /// Copies these parts, which follow each other from `first` in that buffer, now or together with
  /// those that are added next.
  virtual void add(const std::byte* first, std::span<const part> parts) = 0;
  /// Ends the piece: that buffer has all of it.
  virtual void end_piece(std::size_t piece) = 0;
  /// Blocks until all copies have ended.
  virtual void finish() = 0;
};

}  // namespace gpushm::tensors
