// SPDX-License-Identifier: Apache-2.0
// The functions of window.h.
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/report/c_interface.hpp"
#include "client/c/c_handles.hpp"
#include "client/segment/window.hpp"
#include "gpushm/window.h"

using gpushm::base::c_call;
using gpushm::base::out;
using gpushm::client_detail::filled;

/// Counted by its owners.
struct gpushm_window {
  explicit gpushm_window(const gpushm_segment& segment) : impl(segment) {}

  gpushm::client_detail::window_impl impl;
  std::atomic<std::uint32_t> handles{1};
};

namespace {

/// Throws `errc::invalid_argument` for null.
template <typename Window>
Window& filled_window(Window* window) {
  if (window == nullptr) {
    throw gpushm::error(gpushm::errc::invalid_argument,
                        "window",
                        {},
                        "this window object is empty",
                        "create a window first; a moved-from object is empty");
  }
  return *window;
}

}  // namespace

gpushm_errc gpushm_window_create(const gpushm_segment* segment, gpushm_window** window) {
  return c_call([&] {
    gpushm_window*& result = out(window, "window");
    result = std::make_unique<gpushm_window>(filled(segment)).release();
  });
}

gpushm_window* gpushm_window_dup(const gpushm_window* window) {
  auto* const handle = const_cast<gpushm_window*>(window);
  if (handle != nullptr) {
    handle->handles.fetch_add(1, std::memory_order_relaxed);
  }
  return handle;
}

void gpushm_window_close(gpushm_window* window) {
  if (window != nullptr && window->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete window;  // NOLINT(cppcoreguidelines-owning-memory): owned by its handles
  }
}

gpushm_errc gpushm_window_show(gpushm_window* window, const gpushm_segment* segment) {
  return c_call([&] { filled_window(window).impl.show(filled(segment)); });
}

gpushm_errc gpushm_window_segment(const gpushm_window* window, gpushm_segment** segment) {
  return c_call([&] {
    gpushm_segment*& result = out(segment, "window");
    result = filled_window(window).impl.segment().release();
  });
}

// ---- properties: these functions neither block nor fail ----

const void* gpushm_window_data(const gpushm_window* window) {
  return window == nullptr ? nullptr : window->impl.data();
}
void* gpushm_window_mutable_data(const gpushm_window* window) {
  return window == nullptr || window->impl.access() == gpushm::access::read ? nullptr
                                                                            : window->impl.data();
}
uint64_t gpushm_window_size_bytes(const gpushm_window* window) {
  return window == nullptr ? 0 : window->impl.size_bytes();
}
int32_t gpushm_window_ordinal(const gpushm_window* window) {
  return window == nullptr ? 0 : window->impl.ordinal();
}
gpushm_segment_state gpushm_window_state(const gpushm_window* window) {
  return window == nullptr ? GPUSHM_SEGMENT_LIVE
                           : static_cast<gpushm_segment_state>(window->impl.state());
}
