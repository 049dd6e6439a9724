// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/receiver.hpp"

#include <gst/video/video.h>

#include <algorithm>
#include <utility>

#include "gstreamer/element_support.hpp"

namespace gpushm::gstreamer {

namespace {

/// How long a consumer waits for another producer when its own has died.
constexpr std::chrono::milliseconds successor{500};

/// Width or height of a frame.
constexpr gint max_side = 65'536;

/// Bytes of a frame; 0 for other media. Nothing if the caps are those of no possible frame.
std::optional<std::uint64_t> frame_bytes(const GstCaps* caps) {
  if (gst_structure_has_name(gst_caps_get_structure(caps, 0), "video/x-raw") == FALSE) {
    return 0;
  }
  GstVideoInfo info{};
  // gst_video_info_from_caps does not check all of them, and its sizes may overflow.
  if (gst_video_info_from_caps(&info, caps) == FALSE || info.width <= 0 || info.height <= 0 ||
      info.width > max_side || info.height > max_side) {
    return std::nullopt;
  }
  return info.size;
}

}  // namespace

/// Throws `error` if the metadata are not those of a buffer that other elements can use safely.
void receiver::read(const channel_item& item, received& into) {
  const auto fail = [this](const std::string& cause) {
    throw error(errc::protocol_error,
                "receive",
                settings_.channel,
                cause,
                "see what publishes into this channel (gpushmsink must)");
  };
  const metadata_fault fault = decode(item.metadata(), item.bytes(), into.metadata);
  if (fault != metadata_fault::none) {
    fail(std::string(to_text(fault)));
  }
  if (const std::string& text = into.metadata.caps; text != caps_ && !text.empty()) {
    into.new_caps = caps_from_text(text);
    const auto bytes = into.new_caps ? frame_bytes(into.new_caps.get()) : std::nullopt;
    if (!bytes) {
      fail("the item's caps are not valid");
    }
    frame_bytes_ = *bytes;
    caps_ = text;
  }
  if (into.metadata.size < frame_bytes_) {
    fail("the item is smaller than a frame of its caps");
  }
}

/// Returns nullopt at the end, when `stop` was requested, and after the timeout.
std::optional<channel_item> receiver::await(const std::stop_token& stop) {
  try {
    return source_->next(settings_.timeout, stop);
  } catch (const error& why) {
    if (why.code() != errc::peer_died) {
      throw;
    }
    throw error(errc::peer_died,
                "receive",
                settings_.channel,
                "the producer has died, and all its complete items were read",
                "start the producer again, then this pipeline");
  }
}

received receiver::next(const std::stop_token& stop) {
  if (!source_) {
    if (settings_.channel.empty()) {
      throw error(errc::invalid_argument,
                  "receive",
                  "",
                  "the element has no channel",
                  "set its property: gpushmsrc channel=NAME");
    }
    source_ = item_source::open(connect_to(settings_.socket, settings_.timeout, stop),
                                {settings_.channel,
                                 settings_.mode,
                                 settings_.held,
                                 settings_.copy,
                                 settings_.timeout,
                                 successor},
                                stop);
  }
  received result;
  std::optional<channel_item> item = await(stop);
  if (!item) {
    if (source_->has_ended()) {
      result.what = received::kind::end;
    } else if (!stop.stop_requested()) {
      throw error(errc::timed_out,
                  "receive",
                  settings_.channel,
                  "no item came within " + std::to_string(settings_.timeout.count()) + " ms",
                  "see whether the producer is paused, or waits for an item that this pipeline "
                  "keeps (then set copy=true); or increase timeout");
    }
    return result;
  }
  try {
    read(*item, result);
  } catch (...) {
    source_->release(*item);
    throw;
  }
  result.is_after_gap = is_first_ || item->skipped() != 0;
  result.memory = source_->memory_of(*item, result.metadata.size);
  result.what = received::kind::buffer;
  is_first_ = false;
  return result;
}

}  // namespace gpushm::gstreamer
