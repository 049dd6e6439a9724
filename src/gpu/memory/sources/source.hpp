// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpu/memory/sources/remote_memory.hpp"
#include "gpushm/types.hpp"

namespace gpushm::memory {

/// Existing memory that can be shared. Does not own it; its allocator frees it.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe, others unsafe.
class source {
 public:
  source(std::uint64_t address, std::uint64_t size_bytes) noexcept
      : address_(address), size_bytes_(size_bytes) {}
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  virtual ~source() = default;

  [[nodiscard]] virtual gpushm::backend kind() const noexcept = 0;
  [[nodiscard]] virtual const device_id& device() const noexcept = 0;
  /// The address of the shared range in this process.
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  /// The offset of the shared range from the first byte of the first chunk or of the allocation.
  [[nodiscard]] virtual std::uint64_t offset_bytes() const noexcept = 0;
  /// Sizes of the chunks shared as descriptors, in order; empty for legacy handles.
  [[nodiscard]] virtual const std::vector<std::uint64_t>& chunk_bytes() const noexcept = 0;
  /// The descriptor of chunk `index`, owned by the caller. Throws too_many_descriptors,
  /// driver_error, gone_or_replaced.
  [[nodiscard]] virtual base::guarded_fd export_chunk(std::uint32_t index) = 0;
  /// The whole allocation, or all chunks.
  [[nodiscard]] virtual std::uint64_t allocated_bytes() const noexcept = 0;

  /// How to reach exporter-bound memory; nothing for memory shared as descriptors.
  [[nodiscard]] virtual std::optional<remote_memory> remote() const { return std::nullopt; }
  /// Whether it is still the allocation that was found. One driver call that needs no context.
  /// Never throws. Thread-safe.
  [[nodiscard]] virtual bool unchanged() const noexcept { return true; }

 private:
  std::uint64_t address_;
  std::uint64_t size_bytes_;
};

/// Identifies the memory at `pointer` and selects the best way to share it: physical chunks of
/// virtual memory, an exportable pool, a legacy handle, a sealed memfd. The range may begin and end
/// anywhere inside; ranges over many chunks are split. Queries the driver, exports nothing yet.
/// Throws `error`: invalid_argument (null, 0 bytes), not_exportable (naming the kind of memory and
/// the remedy), driver_error, forked.
[[nodiscard]] std::unique_ptr<source> find_source(std::string_view name,
                                                  void* pointer,
                                                  std::uint64_t size_bytes);

}  // namespace gpushm::memory
