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

/// A mapping that somebody else keeps alive: what `segment::view()` returns. Valid as long as that
/// segment is. Copyable; owns nothing.
///
/// Distinct objects: safe. Shared objects: safe (immutable).
class segment_view {
 public:
  segment_view() = default;
  segment_view(void* data, std::uint64_t size_bytes, device_id where)
      : data_(data), size_bytes_(size_bytes), device_(std::move(where)) {}

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] const device_id& device() const noexcept { return device_; }

 private:
  void* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  device_id device_;
};

/// A segment mapped into this process, with its lease. Move-only; the lease and the mapping go with
/// the last `segment` of that generation in the process. A moved-from or default-constructed
/// segment is empty: `operator bool` is false, `data()` is null, everything else throws
/// `errc::invalid_argument`.
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
  /// host ones.
  [[nodiscard]] void* data() const noexcept;
  /// Bytes asked for at creation; the mapping may be longer.
  [[nodiscard]] std::uint64_t size_bytes() const;
  [[nodiscard]] const std::string& name() const;
  /// Where the memory is.
  [[nodiscard]] const device_id& device() const;
  [[nodiscard]] gpushm::backend backend() const;
  [[nodiscard]] gpushm::access access() const;
  [[nodiscard]] gpushm::lifetime lifetime() const;
  [[nodiscard]] gpushm::generation generation() const;
  [[nodiscard]] const gpushm::epoch& epoch() const;
  /// What the creator gave to `publish`; empty before it. Throws `errc::forked` in a forked child.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  /// Reads shared memory only: no system call, never blocks.
  [[nodiscard]] segment_state state() const;
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
  explicit segment(std::unique_ptr<detail::segment_impl> impl) noexcept;
  [[nodiscard]] const detail::segment_impl& impl() const;
  std::unique_ptr<detail::segment_impl> impl_;
};

}  // namespace gpushm
