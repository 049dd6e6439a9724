// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "gpushm/error.hpp"
#include "gpushm/gpushm.h"
#include "gpushm/types.hpp"

namespace gpushm {
inline namespace v1 {

/// A reference to a mapping, as `segment::view()` returns, for libraries that keep memory for as
/// long as they use it (a DLPack capsule, a tensor's deleter). The mapping and its lease exist as
/// long as any copy of the view, even after the segment that it came from is destroyed. Copyable.
/// May be destroyed on any thread.
///
/// Thread-safety: distinct objects: safe; shared objects: safe (immutable).
class segment_view {
 public:
  segment_view() = default;

  /// The first byte; null for an empty view.
  [[nodiscard]] const void* data() const noexcept { return data_; }
  /// As `data`; null if the segment was opened with `access::read`.
  [[nodiscard]] void* mutable_data() const noexcept {
    return access_ == access::read_write ? data_ : nullptr;
  }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  /// Where the memory is.
  [[nodiscard]] const device_id& device() const noexcept { return device_; }
  /// See `segment::ordinal`.
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] gpushm::access access() const noexcept { return access_; }

 private:
  friend class segment;
  /// Precondition: `segment` is not null.
  explicit segment_view(const gpushm_segment* segment)
      : owner_(gpushm_segment_dup(segment), &gpushm_segment_close),
        // gpushm_segment_data returns a const pointer even for writable mappings.
        data_(const_cast<void*>(gpushm_segment_data(segment))),
        size_bytes_(gpushm_segment_size_bytes(segment)),
        ordinal_(gpushm_segment_ordinal(segment)),
        access_(static_cast<gpushm::access>(gpushm_segment_access(segment))) {
    gpushm_device device{};
    glue::check(gpushm_segment_device(segment, &device));
    device_ = glue::device_from(device);
  }

  std::shared_ptr<gpushm_segment> owner_;
  void* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  device_id device_;
  int ordinal_ = -1;
  gpushm::access access_ = gpushm::access::read;
};

/// A segment mapped into this process, with its lease. Move-only; the lease and the mapping end
/// with the last `segment` and `segment_view` of that generation in the process. A moved-from or
/// default-constructed segment is empty: `operator bool` is false, `data()` is null, everything
/// else throws `errc::invalid_argument`.
///
/// The destructor does not wait for GPU work that still uses the memory: synchronize first.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe, others unsafe.
class segment {
 public:
  segment() noexcept = default;
  /// Takes ownership of `handle`; null: an empty segment.
  explicit segment(gpushm_segment* handle) noexcept : handle_(handle) {}

  /// True unless empty.
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// The first byte: a device pointer (also a `CUdeviceptr`) for GPU segments, a CPU pointer for
  /// host segments. Null for an empty segment.
  [[nodiscard]] const void* data() const noexcept { return gpushm_segment_data(handle_.get()); }
  /// As `data`, for writing. Throws `error`: invalid_argument if it was opened with `access::read`
  /// (the hardware also refuses writes there), or for an empty segment.
  [[nodiscard]] void* mutable_data() const {
    void* const pointer = gpushm_segment_mutable_data(filled());
    if (pointer == nullptr) {
      throw error(errc::invalid_argument,
                  "mutable_data",
                  name(),
                  "the segment is mapped for reading only",
                  "open it with access::read_write");
    }
    return pointer;
  }
  /// As requested at creation; the mapping may be longer.
  [[nodiscard]] std::uint64_t size_bytes() const { return gpushm_segment_size_bytes(filled()); }
  [[nodiscard]] std::string name() const {
    return std::string(glue::view(gpushm_segment_name(filled())));
  }
  /// Where the memory is.
  [[nodiscard]] device_id device() const {
    gpushm_device device{};
    glue::check(gpushm_segment_device(filled(), &device));
    return glue::device_from(device);
  }
  /// The device that uses the mapping, as CUDA numbers it in this process; -1 for the host. As
  /// `gpushm_segment_ordinal`.
  [[nodiscard]] int ordinal() const { return gpushm_segment_ordinal(filled()); }
  [[nodiscard]] gpushm::backend backend() const {
    return static_cast<gpushm::backend>(gpushm_segment_backend(filled()));
  }
  [[nodiscard]] gpushm::access access() const {
    return static_cast<gpushm::access>(gpushm_segment_access(filled()));
  }
  [[nodiscard]] gpushm::lifetime lifetime() const {
    return static_cast<gpushm::lifetime>(gpushm_segment_lifetime(filled()));
  }
  [[nodiscard]] gpushm::generation generation() const {
    return gpushm_segment_generation(filled());
  }
  /// Zeros for memory that was imported without a broker.
  [[nodiscard]] gpushm::epoch epoch() const {
    gpushm_epoch epoch{};
    glue::check(gpushm_segment_epoch(filled(), &epoch));
    return glue::epoch_from(epoch);
  }
  /// The metadata passed to `publish`, valid as long as the mapping exists; empty before
  /// publication. Throws `errc::forked` in a forked child.
  [[nodiscard]] std::span<const std::byte> metadata() const {
    const void* data = nullptr;
    std::size_t size = 0;
    glue::check(gpushm_segment_metadata(filled(), &data, &size));
    return {static_cast<const std::byte*>(data), size};
  }
  /// Reads shared memory only: no system call, does not block.
  [[nodiscard]] segment_state state() const {
    return static_cast<segment_state>(gpushm_segment_current_state(filled()));
  }
  /// Returns a reference that may outlive this object.
  [[nodiscard]] segment_view view() const { return segment_view(filled()); }

  /// Makes a created segment visible to other clients, with metadata. As `gpushm_segment_publish`.
  void publish(std::span<const std::byte> metadata = {}) {
    glue::check(gpushm_segment_publish(handle_.get(), metadata.data(), metadata.size()));
  }
  void publish(std::string_view metadata) {
    glue::check(gpushm_segment_publish(handle_.get(), metadata.data(), metadata.size()));
  }

  /// Reverses `client::share`. As `gpushm_segment_unshare`.
  void unshare() { glue::check(gpushm_segment_unshare(handle_.get())); }

  /// Unmaps the memory and keeps its address, until `resume` maps it there again, or new memory;
  /// for all objects in this process that have this mapping. Precondition: nothing uses the memory
  /// meanwhile. As
  /// `gpushm_segment_suspend`, `gpushm_segment_resume`.
  void suspend(suspend_mode mode = suspend_mode::keep) {
    glue::check(gpushm_segment_suspend(handle_.get(), static_cast<gpushm_suspend_mode>(mode)));
  }
  void resume() { glue::check(gpushm_segment_resume(handle_.get())); }

  /// Copy between this segment and host memory, for every device; return when done. As
  /// `gpushm_segment_read`.
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
    glue::check(
        gpushm_segment_read(handle_.get(), offset_bytes, destination.data(), destination.size()));
  }
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source) {
    glue::check(gpushm_segment_write(handle_.get(), offset_bytes, source.data(), source.size()));
  }
  /// Copies `size_bytes` at `source`, memory of a GPU, into the segment. As
  /// `gpushm_segment_write_from_gpu`.
  void write_from_gpu(std::uint64_t offset_bytes, const void* source, std::uint64_t size_bytes) {
    glue::check(gpushm_segment_write_from_gpu(handle_.get(), offset_bytes, source, size_bytes));
  }
  /// Sets every byte to `value`. As `gpushm_segment_fill`.
  void fill(std::byte value) {
    glue::check(gpushm_segment_fill(handle_.get(), std::to_integer<std::uint8_t>(value)));
  }

  /// As those above, after the work that was enqueued on `stream` before. As
  /// `gpushm_segment_read_on`.
  void read_on(void* stream, std::uint64_t offset_bytes, std::span<std::byte> destination) const {
    glue::check(gpushm_segment_read_on(
        handle_.get(), offset_bytes, destination.data(), destination.size(), stream));
  }
  void write_on(void* stream, std::uint64_t offset_bytes, std::span<const std::byte> source) {
    glue::check(
        gpushm_segment_write_on(handle_.get(), offset_bytes, source.data(), source.size(), stream));
  }
  void write_from_gpu_on(void* stream,
                         std::uint64_t offset_bytes,
                         const void* source,
                         std::uint64_t size_bytes) {
    glue::check(
        gpushm_segment_write_from_gpu_on(handle_.get(), offset_bytes, source, size_bytes, stream));
  }
  void fill_on(void* stream, std::byte value) {
    glue::check(
        gpushm_segment_fill_on(handle_.get(), std::to_integer<std::uint8_t>(value), stream));
  }

  /// Ends this object's use of the segment, as its destructor does.
  void reset() noexcept { handle_.reset(); }

  /// Owned by this object; null for an empty one.
  [[nodiscard]] gpushm_segment* handle() const noexcept { return handle_.get(); }
  /// Gives the handle to the caller, who closes it (gpushm_segment_close). Then this is empty.
  [[nodiscard]] gpushm_segment* release() noexcept { return handle_.release(); }

 private:
  [[nodiscard]] const gpushm_segment* filled() const {
    if (!handle_) {
      throw error(errc::invalid_argument,
                  "segment",
                  {},
                  "this segment object is empty",
                  "open or create a segment first; a moved-from object is empty");
    }
    return handle_.get();
  }

  std::unique_ptr<gpushm_segment, glue::deleter<&gpushm_segment_close>> handle_;
};

}  // namespace v1
}  // namespace gpushm
