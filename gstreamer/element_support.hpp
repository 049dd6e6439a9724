// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gst/gst.h>

#include <chrono>
#include <mutex>
#include <stop_token>
#include <string>

#include "gpushm/client.hpp"
#include "gpushm/error.hpp"

namespace gpushm::gstreamer {

/// The category of the plug-in's debug output (GST_DEBUG=gpushm:5).
[[nodiscard]] GstDebugCategory* debug_category();

/// What an element's unlock() and unlock_stop() do: stops waits, and allows them again.
///
/// Thread-safety: safe.
class wait_gate {
 public:
  /// For one wait.
  [[nodiscard]] std::stop_token token() const {
    const std::lock_guard lock(mutex_);
    return source_.get_token();
  }
  void close() {
    std::unique_lock lock(mutex_);
    std::stop_source source(source_);
    lock.unlock();  // callbacks run in request_stop
    source.request_stop();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    source_ = std::stop_source();
  }

 private:
  mutable std::mutex mutex_;
  std::stop_source source_;
};

/// Posts the error message of an element. `domain` and `code` are those of the GError.
void post_error(GstElement* element, GQuark domain, gint code, const std::string& text);
/// The same, for a failure of the library; `writes`: of an element that sends.
void post_error(GstElement* element, const error& why, bool writes);

/// For a `catch (...)`: posts the failure. False: it was a wait that unlock() has ended, and
/// nothing was posted.
[[nodiscard]] bool post_failure(GstElement* element, bool writes);

/// Connects to a broker, which may start later, within `timeout`. Throws as `client::connect`.
[[nodiscard]] client connect_to(const std::string& socket,
                                std::chrono::milliseconds timeout,
                                const std::stop_token& stop);

/// The text of a GValue; empty for null.
[[nodiscard]] std::string text_of(const GValue* value);

}  // namespace gpushm::gstreamer
