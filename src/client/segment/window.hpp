// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "client/segment/segment_impl.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::client_detail {

/// Addresses of this process at which the memory of one segment at a time is mapped
/// (docs/adr/0049-windows.md).
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class window_impl {
 public:
  /// Maps the memory of `segment` at new addresses. Throws as `gpushm_window_create`.
  explicit window_impl(const gpushm_segment& segment);
  window_impl(const window_impl&) = delete;
  window_impl& operator=(const window_impl&) = delete;
  /// Runs on the thread that releases the last handle, which may be a library's.
  ~window_impl();

  /// Throws as `gpushm_window_show`.
  void show(const gpushm_segment& segment);

  [[nodiscard]] void* data() const noexcept { return region_->data(); }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] gpushm::access access() const noexcept { return access_; }
  [[nodiscard]] std::int32_t ordinal() const noexcept { return ordinal_; }
  /// A new use of the segment that is shown, or was last shown if nothing is mapped now. Throws
  /// forked, std::bad_alloc.
  [[nodiscard]] segment_ptr segment() const;
  /// That of the segment that is shown; suspended if nothing is mapped, unknown in a forked child.
  [[nodiscard]] segment_state state() const noexcept;

 private:
  /// A segment, and what it takes to map it again without the broker.
  struct source {
    segment_ptr segment;                // a use that only the window has
    segment_lease::kept_chunks chunks;  // destroyed before its lease table
  };
  using source_ptr = std::shared_ptr<const source>;

  [[nodiscard]] static source_ptr take(const gpushm_segment& segment, std::string_view operation);
  [[nodiscard]] source_ptr shown() const;
  void check_layout(const gpushm_segment& segment) const;
  void map(const source& memory);
  /// After a failure the former memory is mapped, as before, or nothing.
  void change_to(const source& next);
  [[noreturn]] void map_again_after(const error& why);

  std::uint64_t forks_ = fork_count();
  std::mutex change_mutex_;                 ///< one change at a time
  mutable std::mutex shown_mutex_;          ///< held for moments only
  source_ptr shown_;                        ///< written with both held
  std::unique_ptr<memory::region> region_;  // destroyed before the lease
  const std::uint64_t size_bytes_;
  const gpushm::access access_;
  const std::int32_t ordinal_;
};

}  // namespace gpushm::client_detail
