// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "gpushm/export.hpp"
#include "gpushm/types.hpp"

namespace gpushm {

namespace detail {
class segment_impl;
struct segment_access;
}  // namespace detail

/// A share of a mapping: what `segment::view()` returns, for libraries that keep memory for as long
/// as they use it (a DLPack capsule, a tensor's deleter). The mapping and its lease stay as long as
/// a copy of it lives, also after the segment that it came from. Copyable. Ends on any thread.
///
/// Distinct objects: safe. Shared objects: safe (immutable).
class segment_view {
 public:
  segment_view() = default;

  /// The first byte; null for an empty view.
  [[nodiscard]] const void* data() const noexcept { return data_; }
  /// The same; null where the segment was opened with `access::read`.
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
  std::shared_ptr<const detail::segment_impl> owner_;
  void* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  device_id device_;
  int ordinal_ = -1;
  gpushm::access access_ = gpushm::access::read;
};

/// A segment mapped into this process, with its lease. Move-only; the lease and the mapping go with
/// the last `segment` and `segment_view` of that generation in the process. A moved-from or
/// default-constructed segment is empty: `operator bool` is false, `data()` is null, everything
/// else throws `errc::invalid_argument`.
///
/// The destructor does not wait for GPU work that still uses the memory: synchronize first.
///
/// Distinct objects: safe. Shared objects: const members safe, others unsafe.
class GPUSHM_API segment {
 public:
  segment() noexcept;
  segment(segment&&) noexcept;
  segment& operator=(segment&&) noexcept;
  segment(const segment&) = delete;
  segment& operator=(const segment&) = delete;
  ~segment();

  /// Not empty?
  explicit operator bool() const noexcept;

  /// The first byte: a device pointer (also a `CUdeviceptr`) for GPU segments, a CPU pointer for
  /// host ones. Null for an empty segment.
  [[nodiscard]] const void* data() const noexcept;
  /// The same, for writing. Throws `error`: invalid_argument where it was opened with
  /// `access::read` (the hardware refuses writes there, too), or for an empty segment.
  [[nodiscard]] void* mutable_data() const;
  /// Bytes asked for at creation; the mapping may be longer.
  [[nodiscard]] std::uint64_t size_bytes() const;
  [[nodiscard]] const std::string& name() const;
  /// Where the memory is.
  [[nodiscard]] const device_id& device() const;
  /// The device that uses the mapping, as CUDA numbers it in this process (CUDA_VISIBLE_DEVICES
  /// decides); -1 for the host. Another one than `device()`'s where a peer has opened the segment.
  [[nodiscard]] int ordinal() const;
  [[nodiscard]] gpushm::backend backend() const;
  [[nodiscard]] gpushm::access access() const;
  [[nodiscard]] gpushm::lifetime lifetime() const;
  [[nodiscard]] gpushm::generation generation() const;
  [[nodiscard]] const gpushm::epoch& epoch() const;
  /// What the creator gave to `publish`; empty before it. Throws `errc::forked` in a forked child.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  /// Reads shared memory only: no system call, never blocks.
  [[nodiscard]] segment_state state() const;
  /// A share that may outlive this object.
  [[nodiscard]] segment_view view() const;

  /// Makes a created segment visible to others, with up to 64 KiB of metadata. Does not synchronize
  /// any stream: finish the writes that readers rely on first. Blocks for one round trip to the
  /// broker (at most the client's request timeout). Throws `error`: already_published,
  /// message_too_large, permission_denied, broker_gone, timed_out, forked.
  void publish(std::span<const std::byte> metadata = {});
  void publish(std::string_view metadata);

  /// Ends what `client::share` began: when it returns, nobody new gets the memory, and it may be
  /// freed. Who has it mapped keeps it. Segment objects of it stay valid until the memory is freed.
  /// Blocks for one round trip to the broker. Throws `error`: invalid_argument (this process does
  /// not share it, or not any more), timed_out, forked.
  void unshare();

  /// Copies between this segment and host memory; works for every device and returns when done.
  /// `offset_bytes + size` must lie within `size_bytes()`.
  /// Throws `error`: invalid_argument (out of range, or writing through `access::read`),
  /// driver_error, forked (memory of a GPU, in a forked child).
  void read(std::uint64_t offset_bytes, std::span<std::byte> destination) const;
  void write(std::uint64_t offset_bytes, std::span<const std::byte> source);
  /// Sets every byte to `value`; returns when done. Errors as `write`.
  void fill(std::byte value);

  /// Ends this object's use of the segment now instead of at destruction. Never throws.
  void reset() noexcept;

 private:
  friend class client;
  friend struct detail::segment_access;
  explicit segment(std::shared_ptr<detail::segment_impl> impl) noexcept;
  [[nodiscard]] const detail::segment_impl& impl() const;
  std::shared_ptr<detail::segment_impl> impl_;
};

}  // namespace gpushm
