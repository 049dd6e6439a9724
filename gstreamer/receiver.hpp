// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gst/gst.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "gstreamer/caps_text.hpp"
#include "gstreamer/item_memory.hpp"
#include "gstreamer/metadata.hpp"

namespace gpushm::gstreamer {

/// Properties of gpushmsrc.
struct source_settings {
  std::string channel;
  std::string socket;
  consumer_mode mode = consumer_mode::block;
  std::uint32_t held = 2;  ///< of `latest`
  bool copy = false;
  std::chrono::milliseconds timeout{10'000};
};

/// What `receiver::next` gives.
struct received {
  enum class kind : std::uint8_t { buffer, end, stopped };
  kind what = kind::stopped;
  item_metadata metadata;
  GstMemory* memory = nullptr;  ///< the caller's; null: an empty buffer
  caps_ptr new_caps;            ///< if they differ from those of the buffer before
  bool is_after_gap = false;    ///< the first, or items before it were skipped
};

/// Gets buffers from a channel.
///
/// Thread-safety: unsafe: for the streaming thread.
class receiver {
 public:
  explicit receiver(source_settings settings) : settings_(std::move(settings)) {}

  /// The next buffer. The first call joins the channel. Blocks at most the timeout for each. Throws
  /// `error`: as `client::connect` and `item_source::open`; timed_out; peer_died; protocol_error if
  /// an item is not a buffer.
  [[nodiscard]] received next(const std::stop_token& stop);

 private:
  [[nodiscard]] std::optional<channel_item> await(const std::stop_token& stop);
  void read(const channel_item& item, received& into);

  source_settings settings_;
  std::shared_ptr<item_source> source_;
  bool is_first_ = true;
  std::string caps_;
  std::uint64_t frame_bytes_ = 0;  ///< of the caps, if they are of video/x-raw
};

}  // namespace gpushm::gstreamer
