// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/files/guarded_fd.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/memory/backends/chunk_plan.hpp"
#include "gpushm/types.hpp"

namespace gpushm::memory {

/// Provides an import with a segment's chunks, in order.
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
  /// The next chunk; nullopt after the last. May block. Throws if the next chunk cannot be
  /// obtained.
  [[nodiscard]] virtual std::optional<chunk> next() = 0;
};

/// Reserved addresses, and the chunks that are mapped there back to back. Destroying it unmaps them
/// and frees the addresses.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class address_range {
 public:
  address_range(const address_range&) = delete;
  address_range& operator=(const address_range&) = delete;
  virtual ~address_range() = default;

  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
  /// The bytes of all its chunks, and of the mapped ones.
  [[nodiscard]] virtual std::uint64_t total_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t mapped_bytes() const noexcept = 0;
  /// Maps a chunk after the others, and closes its descriptor. Throws wrong_descriptor_kind,
  /// driver_error, system_error.
  virtual void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) = 0;
  /// All chunks have been added: makes them accessible. Throws driver_error.
  virtual void allow_access() = 0;
  /// Unmaps all chunks, and keeps the addresses. Throws driver_error, system_error; those that
  /// `mapped_bytes` counts are still mapped then.
  virtual void unmap() = 0;

 protected:
  address_range() = default;
  address_range(address_range&&) = default;
  address_range& operator=(address_range&&) = default;
};

/// Memory mapped into this process, and the addresses that are reserved for it. Owns mapping and
/// allocations; destroying it unmaps and never waits for GPU work.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe, others unsafe.
class region {
 public:
  region() = default;
  region(const region&) = delete;
  region& operator=(const region&) = delete;
  virtual ~region() = default;

  [[nodiscard]] virtual void* data() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t mapped_bytes() const noexcept = 0;
  /// False once the memory it maps is gone: legacy mappings are destroyed when the process resets
  /// the device. Never blocks.
  [[nodiscard]] virtual bool usable() const noexcept { return true; }

  // The caller has checked offsets and sizes; each function blocks until the copy is complete.
  // Throw driver_error.
  virtual void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const = 0;
  virtual void write(std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;
  virtual void fill(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::byte value) = 0;

  /// Whether its memory is mapped by itself, so that it can be suspended.
  [[nodiscard]] bool can_be_suspended() noexcept { return range() != nullptr; }
  /// True from `suspend` until a `resume` that succeeds: `data` is the same, nothing is mapped
  /// there, and no other memory of this process can be.
  [[nodiscard]] bool suspended() const noexcept {
    return suspended_.load(std::memory_order_acquire);
  }
  /// Unmaps the memory and keeps its addresses. No effect if it is suspended. Does not synchronize.
  /// Precondition: no work of a CPU or GPU uses the memory, nor is it registered with a driver.
  /// Throws not_supported (memory of this kind cannot be suspended: nothing has changed),
  /// driver_error, system_error.
  void suspend();
  /// Maps these chunks at the same addresses, for the same access. Blocks while `chunks` does.
  /// Throws invalid_argument if it is not suspended, and as `backend::import`: it is suspended
  /// then.
  void resume(chunk_source& chunks);

 private:
  /// Returns null if its memory cannot be unmapped by itself.
  [[nodiscard]] virtual address_range* range() noexcept { return nullptr; }

  std::atomic<bool> suspended_{false};
};

/// A region that this process allocated and can export.
class allocation : public region {
 public:
  /// The descriptor of chunk `index`, owned by the caller. Call once per chunk. Throws
  /// too_many_descriptors, driver_error.
  [[nodiscard]] virtual base::guarded_fd export_chunk(std::uint32_t index) = 0;
  /// Frees everything that only exporting needs; the mapping stays.
  virtual void finish_exports() noexcept = 0;
};

/// The parameters of an import.
struct import_request {
  std::string_view name;
  std::uint64_t total_bytes = 0;  ///< of all chunks
  gpushm::access access = gpushm::access::read;
  std::uint64_t offset_bytes = 0;  ///< where the region begins in the chunks
};

/// A pending import. Destroying it before `finish` undoes what was added.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class importer {
 public:
  importer() = default;
  importer(const importer&) = delete;
  importer& operator=(const importer&) = delete;
  virtual ~importer() = default;

  /// Takes ownership of the descriptor, and closes it after importing. Throws
  /// wrong_descriptor_kind, driver_error.
  virtual void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) = 0;
  /// Throws driver_error.
  [[nodiscard]] virtual std::unique_ptr<region> finish() = 0;
};

/// Creates and maps memory of one kind, on one device as this process sees it.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class backend {
 public:
  backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  virtual ~backend() = default;

  [[nodiscard]] virtual gpushm::backend kind() const noexcept = 0;
  /// The device on which `allocate` places memory, and for which imported memory is mapped.
  [[nodiscard]] virtual const device_id& device() const noexcept = 0;
  /// Sizes are rounded up to this. Bytes.
  [[nodiscard]] virtual std::uint64_t granularity() const = 0;

  /// Allocates and maps for reading and writing. On the host this fails before it begins if there
  /// is not enough memory, and aborts at `deadline`; what was allocated is freed. Throws
  /// out_of_memory, driver_error, timed_out.
  [[nodiscard]] virtual std::unique_ptr<allocation> allocate(
      std::string_view name,
      const chunk_plan& plan,
      std::chrono::steady_clock::time_point deadline) const = 0;
  /// Maps memory created elsewhere. Blocks while `chunks` does, and while the driver maps. Throws
  /// what `chunks` throws, wrong_descriptor_kind, protocol_error (the chunks do not have the
  /// announced size), driver_error, out_of_memory; nothing is mapped then.
  [[nodiscard]] std::unique_ptr<region> import(const import_request& request,
                                               chunk_source& chunks) const;

 private:
  [[nodiscard]] virtual std::unique_ptr<importer> begin_import(
      const import_request& request) const = 0;
};

/// The backend that creates memory on `device`: an ordinal, "GPU-…", "MIG-…", "host", or "auto"
/// (the first visible GPU, otherwise the host). `huge_pages` is for the host only. Throws
/// device_not_found, driver_unavailable, driver_error, invalid_argument.
[[nodiscard]] std::shared_ptr<const backend> backend_for_create(std::string_view device,
                                                                bool huge_pages);

/// The GPU that will use memory on `home`: the one named by `device`, or if that is empty `home`
/// itself, or the first visible GPU if `home` is hidden from this process by CUDA. Checks that this
/// process may open `home` before calling the driver. Throws device_not_visible, device_not_found,
/// invalid_argument, driver_unavailable, driver_error.
[[nodiscard]] const driver::gpu& gpu_for_open(const device_id& home, std::string_view device);

/// The backend that maps memory received as descriptors, for use by `device` (as in
/// `gpu_for_open`). `kind` is host or cuda_vmm. Throws as `gpu_for_open`.
[[nodiscard]] std::shared_ptr<const backend> backend_for_open(gpushm::backend kind,
                                                              const device_id& home,
                                                              std::string_view device);

/// CUDA's ordinal of `device` in this process; -1 for the host, and for a device that CUDA does not
/// report here.
[[nodiscard]] int local_ordinal(const device_id& device) noexcept;

}  // namespace gpushm::memory
