// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/guarded_fd.hpp"
#include "driver/devices.hpp"
#include "gpushm/types.hpp"
#include "memory/chunk_plan.hpp"

namespace gpushm::memory {

/// Memory mapped into this process. Owns mapping and allocations; destroying it unmaps and never
/// waits for GPU work.
///
/// Distinct objects: safe. Shared objects: const members safe, others unsafe.
class region {
 public:
  region() = default;
  region(const region&) = delete;
  region& operator=(const region&) = delete;
  virtual ~region() = default;

  [[nodiscard]] virtual void* data() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t mapped_bytes() const noexcept = 0;
  /// False once what it maps is gone from under it: legacy mappings end when the process resets the
  /// device. Never blocks.
  [[nodiscard]] virtual bool usable() const noexcept { return true; }

  // Offsets and sizes were checked by the caller; each returns when the copy is done. Throw
  // driver_error.
  virtual void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const = 0;
  virtual void write(std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;
  virtual void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) = 0;
};

/// A region that this process allocated and can hand out.
class allocation : public region {
 public:
  /// The descriptor of chunk `index`; the caller's. Once a chunk. Throws too_many_descriptors,
  /// driver_error.
  [[nodiscard]] virtual base::guarded_fd export_chunk(std::uint32_t index) = 0;
  /// Gives up what only exporting needs; the mapping stays.
  virtual void finish_exports() noexcept = 0;
};

/// What is to be imported.
struct import_request {
  std::string_view name;
  std::uint64_t total_bytes = 0;  ///< of all chunks
  gpushm::access access = gpushm::access::read;
  std::uint64_t offset_bytes = 0;  ///< where in them the region is to begin
};

/// Where an import gets a segment's chunks from, in their order.
class chunk_source {
 public:
  struct chunk {
    base::guarded_fd file;
    std::uint64_t size_bytes = 0;
  };
  chunk_source() = default;
  chunk_source(const chunk_source&) = delete;
  chunk_source& operator=(const chunk_source&) = delete;
  virtual ~chunk_source() = default;
  /// The next one; nothing after the last. May block. Throws what keeps it from coming.
  [[nodiscard]] virtual std::optional<chunk> next() = 0;
};

/// An import under way. What was added is undone when it is destroyed before `finish`.
///
/// Distinct objects: safe. Shared objects: unsafe.
class importer {
 public:
  importer() = default;
  importer(const importer&) = delete;
  importer& operator=(const importer&) = delete;
  virtual ~importer() = default;

  /// Takes the descriptor, and closes it once imported. Throws wrong_descriptor_kind, driver_error.
  virtual void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) = 0;
  /// Throws driver_error.
  [[nodiscard]] virtual std::unique_ptr<region> finish() = 0;
};

/// How memory of one kind, on one device as this process sees it, is made and mapped.
///
/// Distinct objects: safe. Shared objects: safe.
class backend {
 public:
  backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  virtual ~backend() = default;

  [[nodiscard]] virtual gpushm::backend kind() const noexcept = 0;
  /// Where `allocate` puts memory, and which device imported memory is mapped for.
  [[nodiscard]] virtual const device_id& device() const noexcept = 0;
  /// Sizes are rounded up to this. Bytes.
  [[nodiscard]] virtual std::uint64_t granularity() const = 0;

  /// Allocates and maps for reading and writing. On the host this is refused before it begins when
  /// there is not enough memory, and given up at `deadline`; what was allocated is freed. Throws
  /// out_of_memory, driver_error, timed_out.
  [[nodiscard]] virtual std::unique_ptr<allocation> allocate(
      std::string_view name,
      const chunk_plan& plan,
      std::chrono::steady_clock::time_point deadline) const = 0;
  /// Maps memory made elsewhere. Blocks while `chunks` does, and while the driver maps. Throws what
  /// `chunks` throws, wrong_descriptor_kind, protocol_error (the chunks are not as large as was
  /// announced), driver_error, out_of_memory; then nothing is mapped.
  [[nodiscard]] std::unique_ptr<region> import(const import_request& wanted,
                                               chunk_source& chunks) const;

 private:
  [[nodiscard]] virtual std::unique_ptr<importer> begin_import(
      const import_request& wanted) const = 0;
};

/// The backend that makes memory on the device called `device`: an ordinal, "GPU-…", "MIG-…",
/// "host", or "auto" (the first visible GPU, else the host). `huge_pages` is for the host only.
/// Throws device_not_found, driver_unavailable, driver_error, invalid_argument.
[[nodiscard]] std::shared_ptr<const backend> backend_for_create(std::string_view device,
                                                                bool huge_pages);

/// The GPU that is to use memory on `home`: the one called `device`, or with an empty text `home`
/// itself, or the first visible GPU when CUDA does not show `home` to this process. Checks before
/// the driver is asked that this process may open `home`. Throws device_not_visible,
/// device_not_found, invalid_argument, driver_unavailable, driver_error.
[[nodiscard]] const driver::gpu& gpu_for_open(const device_id& home, std::string_view device);

/// The backend that maps memory that travels as descriptors, for use by the device called `device`
/// (as in `gpu_for_open`). `kind` is host or cuda_vmm. Throws as `gpu_for_open`.
[[nodiscard]] std::shared_ptr<const backend> backend_for_open(gpushm::backend kind,
                                                              const device_id& home,
                                                              std::string_view device);

/// `device` as CUDA numbers it in this process; -1 for the host, and for what CUDA does not show
/// here.
[[nodiscard]] int local_ordinal(const device_id& device) noexcept;

}  // namespace gpushm::memory
