// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/window.h"

namespace gpushm {
inline namespace v1 {

/// Addresses of this process at which the memory of one segment after the other is mapped. As
/// `gpushm_window`. Move-only; a copy of `share` keeps it, too. A moved-from or default-constructed
/// window is empty: `operator bool` is false, `data()` is null, `size_bytes()` 0, everything else
/// throws `errc::invalid_argument`.
///
/// The destructor does not wait for GPU work that still uses the memory: synchronize first.
///
/// Thread-safety: distinct objects: safe; shared objects: `show` and const members safe, others
/// unsafe.
class window {
 public:
  window() noexcept = default;
  /// Makes a window that shows `segment`. As `gpushm_window_create`.
  explicit window(const gpushm::segment& segment) {
    gpushm_window* created = nullptr;
    glue::check(gpushm_window_create(segment.handle(), &created));
    handle_.reset(created);
  }
  /// Takes ownership of `handle`; null: an empty window.
  explicit window(gpushm_window* handle) noexcept : handle_(handle) {}

  /// True unless empty.
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// Shows the memory of another segment at the same addresses. Precondition: nothing uses the
  /// memory meanwhile. As `gpushm_window_show`.
  void show(const gpushm::segment& segment) {
    glue::check(gpushm_window_show(handle_.get(), segment.handle()));
  }
  /// The segment that the window shows, as another open of it. As `gpushm_window_segment`.
  [[nodiscard]] gpushm::segment segment() const {
    gpushm_segment* shown = nullptr;
    glue::check(gpushm_window_segment(handle_.get(), &shown));
    return gpushm::segment(shown);
  }
  /// As `gpushm_window_state`.
  [[nodiscard]] segment_state state() const {
    return static_cast<segment_state>(gpushm_window_state(filled()));
  }
  /// The first byte, which never changes; null for an empty window.
  [[nodiscard]] const void* data() const noexcept { return gpushm_window_data(handle_.get()); }
  /// As `data`; null if the segments are mapped for reading only.
  [[nodiscard]] void* mutable_data() const noexcept {
    return gpushm_window_mutable_data(handle_.get());
  }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    return gpushm_window_size_bytes(handle_.get());
  }
  /// See `segment::ordinal`.
  [[nodiscard]] int ordinal() const { return gpushm_window_ordinal(filled()); }

  /// Returns an owner that keeps the window, and so its addresses and what it shows, for libraries
  /// that keep memory as long as they use it. May be destroyed on any thread.
  [[nodiscard]] std::shared_ptr<const void> share() const {
    return {gpushm_window_dup(filled()), &gpushm_window_close};
  }
  /// Ends this object's use of the window, as its destructor does.
  void reset() noexcept { handle_.reset(); }
  /// Owned by this object; null for an empty one.
  [[nodiscard]] gpushm_window* handle() const noexcept { return handle_.get(); }
  /// Gives the handle to the caller, who closes it (gpushm_window_close). Then this is empty.
  [[nodiscard]] gpushm_window* release() noexcept { return handle_.release(); }

 private:
  [[nodiscard]] gpushm_window* filled() const {
    if (!handle_) {
      throw error(errc::invalid_argument,
                  "window",
                  {},
                  "this window object is empty",
                  "create a window first; a moved-from object is empty");
    }
    return handle_.get();
  }

  std::unique_ptr<gpushm_window, glue::deleter<&gpushm_window_close>> handle_;
};

}  // namespace v1
}  // namespace gpushm
