// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/publisher.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "gstreamer/caps_text.hpp"
#include "gstreamer/element_support.hpp"

namespace gpushm::gstreamer {

namespace {

/// Interval at which a producer looks for consumers that have joined.
constexpr std::chrono::milliseconds look_again{5};

struct buffer_unref {
  void operator()(GstBuffer* buffer) const noexcept { gst_buffer_unref(buffer); }
};

/// A mapped video frame.
class mapped_frame {
 public:
  mapped_frame(const GstVideoInfo& info, GstBuffer* buffer, GstMapFlags flags)
      : is_mapped_(gst_video_frame_map(&frame_, &info, buffer, flags) != FALSE) {}
  mapped_frame(const mapped_frame&) = delete;
  mapped_frame& operator=(const mapped_frame&) = delete;
  ~mapped_frame() {
    if (is_mapped_) {
      gst_video_frame_unmap(&frame_);
    }
  }
  [[nodiscard]] bool is_mapped() const noexcept { return is_mapped_; }
  [[nodiscard]] GstVideoFrame* get() noexcept { return &frame_; }

 private:
  GstVideoFrame frame_{};
  bool is_mapped_;
};

std::string count(std::uint64_t value, const char* one) {
  return std::to_string(value) + ' ' + one + (value == 1 ? "" : "s");
}

}  // namespace

void publisher::set_caps(const GstCaps* caps) {
  caps_ = caps_to_text(caps, max_caps_bytes);
  if (caps_.empty()) {
    throw error(errc::message_too_large,
                "publish",
                settings_.channel,
                "the caps do not fit into the " + std::to_string(max_caps_bytes) +
                    " bytes that an item has for them",
                "leave fields out with a capsfilter; of compressed video, use a stream format "
                "without codec_data, for instance h264parse ! "
                "video/x-h264,stream-format=byte-stream");
  }
  video_.reset();
  GstVideoInfo info{};
  if (gst_structure_has_name(gst_caps_get_structure(caps, 0), "video/x-raw") != FALSE &&
      gst_video_info_from_caps(&info, caps) != FALSE) {
    video_ = info;
  }
}

/// The size in the default layout, to which frames with another layout are converted.
std::uint64_t publisher::bytes_of(GstBuffer* buffer) const {
  return video_ && gst_buffer_get_video_meta(buffer) != nullptr ? video_->size
                                                                : gst_buffer_get_size(buffer);
}

void publisher::open(GstBuffer* first, const std::stop_token& stop) {
  if (producer_) {
    return;
  }
  if (settings_.channel.empty()) {
    throw error(errc::invalid_argument,
                "publish",
                "",
                "the element has no channel",
                "set its property: gpushmsink channel=NAME");
  }
  if (!client_) {
    client_ = connect_to(settings_.socket, settings_.acquire_timeout, stop);
  }
  channel_options wanted;
  wanted.slot_bytes = settings_.slot_bytes;
  if (wanted.slot_bytes == 0) {
    wanted.slot_bytes =
        std::max<std::uint64_t>({video_ ? video_->size : 0, bytes_of(first), std::uint64_t{1}});
  }
  wanted.slots = settings_.slots;
  wanted.device = "host";
  wanted.stop = stop;
  auto created = channel_producer::create(*client_, settings_.channel, wanted);
  // A channel that is continued has the memory that its first producer has chosen.
  if (client_->stat(settings_.channel).device.kind != device_kind::host) {
    throw error(errc::invalid_argument,
                "publish",
                settings_.channel,
                "the channel is in the memory of a GPU, and this element writes host memory only",
                "use another channel");
  }
  slot_bytes_ = wanted.slot_bytes;
  has_consumers_ = settings_.consumers == 0;
  producer_ = std::move(created);
}

bool publisher::await_consumers(const std::stop_token& stop) {
  const auto until = std::chrono::steady_clock::now() + settings_.acquire_timeout;
  std::unique_lock lock(pause_mutex_);
  while (!has_consumers_) {
    const std::uint32_t joined = producer_->stats().consumers;
    has_consumers_ = joined >= settings_.consumers;
    if (has_consumers_) {
      break;
    }
    if (std::chrono::steady_clock::now() >= until) {
      throw error(errc::timed_out,
                  "publish",
                  settings_.channel,
                  std::to_string(joined) + " of " + count(settings_.consumers, "consumer") +
                      " have joined within " + std::to_string(settings_.acquire_timeout.count()) +
                      " ms",
                  "start more of them, or increase acquire-timeout");
    }
    if (pause_.wait_for(lock, stop, look_again, [&] { return stop.stop_requested(); })) {
      return false;
    }
  }
  return true;
}

void publisher::copy(GstBuffer* buffer,
                     const channel_slot& destination,
                     std::uint64_t bytes) const {
  if (!video_ || gst_buffer_get_video_meta(buffer) == nullptr) {
    if (gst_buffer_extract(buffer, 0, destination.data(), bytes) != bytes) {
      throw error(errc::system_error, "publish", settings_.channel, "the buffer was not read");
    }
    return;
  }
  const std::unique_ptr<GstBuffer, buffer_unref> slot(gst_buffer_new_wrapped_full(
      GstMemoryFlags{}, destination.data(), destination.bytes(), 0, bytes, nullptr, nullptr));
  mapped_frame source(*video_, buffer, GST_MAP_READ);
  mapped_frame target(*video_, slot.get(), GST_MAP_WRITE);
  if (!source.is_mapped() || !target.is_mapped() ||
      gst_video_frame_copy(target.get(), source.get()) == FALSE) {
    throw error(errc::system_error, "publish", settings_.channel, "the video frame was not read");
  }
}

bool publisher::publish(GstBuffer* buffer, item_metadata times, const std::stop_token& stop) {
  open(buffer, stop);
  const std::uint64_t bytes = bytes_of(buffer);
  if (bytes > slot_bytes_) {
    throw error(
        errc::message_too_large,
        "publish",
        settings_.channel,
        "a buffer of " + count(bytes, "byte") + ", and slots of " + count(slot_bytes_, "byte"),
        "set slot-bytes to the size of the largest buffer");
  }
  if (!await_consumers(stop)) {
    return false;
  }
  auto slot = producer_->acquire(settings_.acquire_timeout, stop);
  if (!slot) {
    if (stop.stop_requested()) {
      return false;
    }
    throw error(errc::timed_out,
                "publish",
                settings_.channel,
                "no slot became free within " + std::to_string(settings_.acquire_timeout.count()) +
                    " ms: a consumer does not release what it has",
                "see whether a consumer is paused, give the channel more slots, or increase "
                "acquire-timeout");
  }
  copy(buffer, *slot, bytes);
  times.size = bytes;
  times.caps = caps_;
  slot->publish(encode(times));
  return true;
}

void publisher::close() noexcept {
  producer_.reset();
}

}  // namespace gpushm::gstreamer
