// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gst/gst.h>
#include <gst/video/video.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "gpushm/channel.hpp"
#include "gstreamer/metadata.hpp"

namespace gpushm::gstreamer {

/// Properties of gpushmsink.
struct sink_settings {
  std::string channel;
  std::string socket;
  std::uint32_t slots = 4;
  std::uint64_t slot_bytes = 0;  ///< 0: of the caps, or of the first buffer
  std::uint32_t consumers = 0;   ///< the first buffer waits for this number
  std::chrono::milliseconds acquire_timeout{10'000};
};

/// Publishes buffers into a channel.
///
/// Thread-safety: unsafe: for the streaming thread.
class publisher {
 public:
  explicit publisher(sink_settings settings) : settings_(std::move(settings)) {}

  /// Sets the caps of the buffers that follow. Throws `error`: message_too_large if they do not fit
  /// into an item's metadata.
  void set_caps(const GstCaps* caps);

  /// Creates the channel, unless it exists. Blocks for the broker, at most the timeout. Throws
  /// `error` as `client::connect` and `channel_producer::create`; cancelled.
  void open(GstBuffer* first, const std::stop_token& stop);

  /// Copies a buffer into a slot and publishes it; blocks until a slot is free. False: `stop` was
  /// requested. Throws `error`: as `open`, timed_out, message_too_large (a buffer larger than a
  /// slot). `times`: of the buffer, for the metadata; caps and size are set here.
  [[nodiscard]] bool publish(GstBuffer* buffer, item_metadata times, const std::stop_token& stop);

  /// Ends the channel: consumers get what is published, and then the end.
  void close() noexcept;

 private:
  [[nodiscard]] std::uint64_t bytes_of(GstBuffer* buffer) const;
  [[nodiscard]] bool await_consumers(const std::stop_token& stop);
  void copy(GstBuffer* buffer, const channel_slot& destination, std::uint64_t bytes) const;

  sink_settings settings_;
  std::optional<client> client_;
  std::optional<channel_producer> producer_;
  std::uint64_t slot_bytes_ = 0;
  bool has_consumers_ = false;
  std::string caps_;
  std::optional<GstVideoInfo> video_;  ///< of video/x-raw
  std::mutex pause_mutex_;
  std::condition_variable_any pause_;
};

}  // namespace gpushm::gstreamer
