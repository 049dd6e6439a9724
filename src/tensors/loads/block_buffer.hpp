// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "tensors/loads/copy_lane.hpp"

namespace gpushm::tensors {

struct block_buffer_end {
  void operator()(std::byte* memory) const noexcept {
    std::free(memory);  // NOLINT(*-no-malloc,*-owning-memory): of aligned_alloc
  }
};
/// Memory that begins at a block, also for reads past the page cache.
using block_buffer = std::unique_ptr<std::byte, block_buffer_end>;

/// `bytes`: of whole blocks. Null: there is no memory.
[[nodiscard]] inline block_buffer make_block_buffer(std::size_t bytes) {
  // NOLINTNEXTLINE(*-no-malloc,*-owning-memory): its end frees it
  return block_buffer(static_cast<std::byte*>(std::aligned_alloc(copy_lane::block_bytes, bytes)));
}

}  // namespace gpushm::tensors
