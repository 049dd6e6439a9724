// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "broker/hub/closer.hpp"
#include "core/domain.hpp"
#include "succession/recorder/kept_fd.hpp"

namespace gpushm::broker_detail {

/// The descriptors of one segment. They are closed when the segment and the last packet that
/// carries them are gone; by `closed_by` if it is set, which returns the bytes and descriptors
/// then.
struct segment_files final : core::payload {
  segment_files() = default;
  segment_files(const segment_files&) = delete;
  segment_files& operator=(const segment_files&) = delete;
  ~segment_files() override {
    if (held) {  // the segment itself is gone, and its memory is not
      held->release(core::resource::segments, held->held(core::resource::segments));
      const std::uint64_t memory = held->held(core::resource::memory_bytes);
      const std::uint64_t kept = chunks.empty() ? 0 : memory_while_freed;
      held->release(core::resource::memory_bytes, memory - std::min(memory, kept));
    }
    if (closed_by) {
      closed_by->close(std::move(chunks), std::move(held), generation);
    }
    chunks.clear();  // before the charges are returned
  }

  /// The segment pays for them, also after its end.
  void charge_to(const core::reservation& reservation, std::shared_ptr<core::charges> charged) {
    constexpr std::uint64_t recorded = 512;  // `kind::freeing`, without its texts, and in `closer`
    constexpr auto memory = static_cast<std::size_t>(core::resource::memory_bytes);
    memory_while_freed = static_cast<std::uint32_t>(
        core::cost_of(reservation)[memory] - core::cost::segment - core::cost::lease + recorded);
    held = std::move(charged);
  }

  gpushm::generation generation = 0;
  /// A timeline page has one more than `chunk_bytes`, which its openers do not get.
  std::vector<succession::kept_fd> chunks;
  std::vector<std::uint64_t> chunk_bytes;
  std::shared_ptr<core::charges> held;
  std::shared_ptr<closer> closed_by;
  bool is_lost = false;  ///< a predecessor had more chunks than these
  /// Whether the creator hands the segment back. Unknown after a restart.
  std::optional<bool> is_by_creator;
  /// What stays charged of memory_bytes until they are closed.
  std::uint32_t memory_while_freed = 0;

  /// The page, open for writing; null: these are no timeline page.
  [[nodiscard]] const succession::kept_fd* writable() const noexcept {
    return chunks.size() > chunk_bytes.size() ? &chunks.back() : nullptr;
  }
};

/// Precondition: the segment has files.
[[nodiscard]] inline segment_files& files_of(const core::segment& segment) {
  return static_cast<segment_files&>(*segment.payload);
}

[[nodiscard]] inline std::shared_ptr<const segment_files> shared_files_of(
    const core::segment& segment) {
  return std::static_pointer_cast<const segment_files>(segment.payload);
}

}  // namespace gpushm::broker_detail
