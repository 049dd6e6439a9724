// SPDX-License-Identifier: Apache-2.0
// gpushmsink and gpushmsrc in this process: the memory of buffers, states, and hostile items.
#include <gmock/gmock.h>
#include <gst/gst.h>
#include <gst/video/video.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpushm/channel.hpp"
#include "gpushm/gpushm.hpp"
#include "gstreamer/metadata.hpp"
#include "tests/gstreamer/gst_world.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm_tests {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr GstClockTime limit = 60 * GST_SECOND;

struct unref_object {
  void operator()(gpointer object) const noexcept { gst_object_unref(object); }
};
struct unref_buffer {
  void operator()(GstBuffer* buffer) const noexcept { gst_buffer_unref(buffer); }
};
struct unref_caps {
  void operator()(GstCaps* caps) const noexcept { gst_caps_unref(caps); }
};
using element_ptr = std::unique_ptr<GstElement, unref_object>;
using buffer_ptr = std::unique_ptr<GstBuffer, unref_buffer>;
using caps_ptr = std::unique_ptr<GstCaps, unref_caps>;

/// A pipeline of gst_parse_launch; stopped when it is destroyed.
class pipeline {
 public:
  explicit pipeline(const std::string& text) {
    GError* why = nullptr;
    element_.reset(gst_parse_launch(text.c_str(), &why));
    if (why != nullptr) {
      ADD_FAILURE() << text << ": " << why->message;
      g_error_free(why);
    }
    bus_.reset(gst_element_get_bus(element_.get()));
  }
  pipeline(pipeline&&) = default;
  ~pipeline() {
    if (element_) {
      set(GST_STATE_NULL);
    }
  }
  void set(GstState state) { gst_element_set_state(element_.get(), state); }
  void play() { set(GST_STATE_PLAYING); }
  [[nodiscard]] element_ptr find(const char* name) const {
    return element_ptr(
        gst_bin_get_by_name(static_cast<GstBin*>(static_cast<gpointer>(element_.get())), name));
  }
  /// The text of an error, or "EOS".
  [[nodiscard]] std::string end() const {
    GstMessage* const message =
        gst_bus_timed_pop_filtered(static_cast<GstBus*>(static_cast<gpointer>(bus_.get())),
                                   limit,
                                   static_cast<GstMessageType>(static_cast<int>(GST_MESSAGE_ERROR) |
                                                               static_cast<int>(GST_MESSAGE_EOS)));
    if (message == nullptr) {
      return "nothing in time";
    }
    std::string text = "EOS";
    if (GST_MESSAGE_TYPE(message) == GST_MESSAGE_ERROR) {
      GError* why = nullptr;
      gst_message_parse_error(message, &why, nullptr);
      text = why->message;
      g_error_free(why);
    }
    gst_message_unref(message);
    return text;
  }

 private:
  element_ptr element_;
  std::unique_ptr<void, unref_object> bus_;
};

struct sample {
  buffer_ptr buffer;
  std::string caps;
  GstSegment segment{};
};

/// The next sample of an appsink; nullopt at the end.
std::optional<sample> pull(GstElement* element) {
  GstSample* pulled = nullptr;
  g_signal_emit_by_name(element, "try-pull-sample", limit, &pulled);
  if (pulled == nullptr) {
    return std::nullopt;
  }
  sample result;
  result.buffer.reset(gst_buffer_ref(gst_sample_get_buffer(pulled)));
  if (GstCaps* const caps = gst_sample_get_caps(pulled)) {
    char* const text = gst_caps_to_string(caps);
    result.caps = text;
    g_free(text);
  }
  gst_segment_copy_into(gst_sample_get_segment(pulled), &result.segment);
  gst_sample_unref(pulled);
  return result;
}

std::string bytes_of(GstBuffer* buffer) {
  std::string bytes(gst_buffer_get_size(buffer), '\0');
  gst_buffer_extract(buffer, 0, bytes.data(), bytes.size());
  return bytes;
}

/// Whether its memory is a slot: the memory is for reading only.
bool is_slot(GstBuffer* buffer) {
  return gst_buffer_n_memory(buffer) == 1 &&
         GST_MEMORY_IS_READONLY(gst_buffer_peek_memory(buffer, 0)) != FALSE;
}

std::size_t slot_mappings() {
  return gpushm_testing::count_mappings(::getpid(), "memfd:gpushm");
}

class gst_elements : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, value] : world_.environment()) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    gst_init(nullptr, nullptr);
    for (const char* name : {"appsrc", "appsink", "videotestsrc"}) {
      const element_ptr factory(
          static_cast<GstElement*>(static_cast<gpointer>(gst_element_factory_find(name))));
      if (!factory) {
        GTEST_SKIP() << name << " is not installed (package gstreamer1.0-plugins-base)";
      }
    }
    broker_.emplace(world_.serve());
  }

  /// All properties as text, because the plug-in registry of this process is that of the first
  /// test.
  [[nodiscard]] std::string at(const std::string& element, const std::string& channel = "c") const {
    return element + " socket=" + world_.command().socket() + " channel=" + channel + " ";
  }
  [[nodiscard]] gpushm::client connect() const {
    gpushm::connect_options options;
    options.socket_path = world_.command().socket();
    options.timeout = 30s;
    return gpushm::client::connect(options);
  }
  /// A pipeline from `source` to the appsink "out", which keeps what is not pulled.
  [[nodiscard]] pipeline receive(const std::string& options = "") const {
    return pipeline(at("gpushmsrc") + options +
                    " ! appsink name=out sync=false enable-last-sample=false");
  }
  /// Publishes one item with these metadata, and returns how a source ends.
  [[nodiscard]] std::string end_after_item(std::span<const std::byte> metadata) {
    const gpushm::client client = connect();
    gpushm::channel_options options;
    options.slot_bytes = 1'000;
    options.device = "host";
    auto producer = gpushm::channel_producer::create(client, "c", options);
    auto source = receive();
    auto slot = producer.acquire(10s);
    if (!slot) {
      return "no slot";
    }
    slot->publish(metadata);
    source.play();
    return source.end();
  }

  gst_world world_;
  std::optional<gpushm_testing::child> broker_;
};

TEST_F(gst_elements, buffers_are_slots_and_are_released_in_any_order_and_thread) {
  pipeline sink("videotestsrc num-buffers=40 ! video/x-raw,format=NV12,width=512,height=512 ! " +
                at("gpushmsink") + "wait-for-consumers=1 slots=6");
  auto source = receive();
  source.play();
  sink.play();
  const auto out = source.find("out");
  std::size_t in_place = 0;
  std::size_t count = 0;
  std::vector<buffer_ptr> kept;
  while (auto next = pull(out.get())) {
    in_place += is_slot(next->buffer.get()) ? 1U : 0U;
    ++count;
    kept.push_back(std::move(next->buffer));
    if (kept.size() == 3) {  // the second, the first, the third
      std::swap(kept[0], kept[1]);
      std::async(std::launch::async, [&] { kept.clear(); }).get();
    }
  }
  EXPECT_EQ(count, 40U);
  EXPECT_GT(in_place, 10U);
  EXPECT_EQ(source.end(), "EOS");
  EXPECT_EQ(sink.end(), "EOS");
}

TEST_F(gst_elements, buffers_stay_valid_after_both_elements_have_stopped) {
  const std::size_t before = slot_mappings();
  std::vector<buffer_ptr> kept;
  std::vector<std::string> bytes;
  {
    pipeline sink("videotestsrc num-buffers=5 ! video/x-raw,format=GRAY8,width=512,height=512 ! " +
                  at("gpushmsink") + "wait-for-consumers=1 slots=8");
    auto source = receive();
    source.play();
    sink.play();
    const auto out = source.find("out");
    while (auto next = pull(out.get())) {
      bytes.push_back(bytes_of(next->buffer.get()));
      kept.push_back(std::move(next->buffer));
    }
  }
  ASSERT_EQ(kept.size(), 5U);
  EXPECT_TRUE(
      std::any_of(kept.begin(), kept.end(), [](auto& each) { return is_slot(each.get()); }));
  for (std::size_t i = 0; i != kept.size(); ++i) {
    EXPECT_TRUE(bytes_of(kept[i].get()) == bytes[i]);
  }
  EXPECT_GT(slot_mappings(), before);
  kept.clear();
  EXPECT_TRUE(gpushm_testing::eventually([&] { return slot_mappings() == before; }, 30s))
      << slot_mappings() << " mappings, before " << before;
}

TEST_F(gst_elements, buffers_that_are_kept_are_copies_when_slots_are_few) {
  pipeline sink("videotestsrc num-buffers=30 ! video/x-raw,format=GRAY8,width=512,height=512 ! " +
                at("gpushmsink") + "wait-for-consumers=1 slots=4 acquire-timeout=60000");
  auto source = receive("copy=true");
  source.play();
  sink.play();
  const auto out = source.find("out");
  std::vector<buffer_ptr> kept;
  while (auto next = pull(out.get())) {
    EXPECT_FALSE(is_slot(next->buffer.get()));
    kept.push_back(std::move(next->buffer));
  }
  EXPECT_EQ(kept.size(), 30U);
}

TEST_F(gst_elements, latest_keeps_fewer_slots_than_held) {
  pipeline sink(
      "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=512,height=512,"
      "framerate=200/1 ! " +
      at("gpushmsink") + "slots=8");
  auto source = receive("mode=latest held=4");
  sink.play();
  source.play();
  const auto out = source.find("out");
  std::vector<buffer_ptr> kept;
  for (int i = 0; i != 20; ++i) {
    auto next = pull(out.get());
    ASSERT_TRUE(next);
    kept.push_back(std::move(next->buffer));
  }
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](auto& each) { return is_slot(each.get()); }),
            3);
}

TEST_F(gst_elements, times_flags_and_offset_travel_and_a_late_consumer_is_due_at_once) {
  pipeline sink("appsrc name=in format=time caps=video/x-test,n=(int)1 ! " + at("gpushmsink") +
                "wait-for-consumers=1");
  auto source = receive();
  source.play();
  sink.play();
  const auto in = sink.find("in");
  for (const auto pts : std::vector<GstClockTime>{7 * GST_SECOND, 8 * GST_SECOND}) {
    GstBuffer* const buffer = gst_buffer_new_allocate(nullptr, 10, nullptr);
    gst_buffer_memset(buffer, 0, 'x', 10);
    GST_BUFFER_PTS(buffer) = pts;
    GST_BUFFER_DTS(buffer) = pts - GST_SECOND;
    GST_BUFFER_DURATION(buffer) = GST_SECOND;
    GST_BUFFER_OFFSET(buffer) = 42;
    gst_buffer_set_flags(buffer, GST_BUFFER_FLAG_DELTA_UNIT);
    GstFlowReturn flow = GST_FLOW_OK;
    g_signal_emit_by_name(in.get(), "push-buffer", buffer, &flow);
    gst_buffer_unref(buffer);
    EXPECT_EQ(flow, GST_FLOW_OK);
  }
  const auto out = source.find("out");
  for (const auto pts : std::vector<GstClockTime>{7 * GST_SECOND, 8 * GST_SECOND}) {
    const auto next = pull(out.get());
    ASSERT_TRUE(next);
    GstBuffer* const buffer = next->buffer.get();
    EXPECT_EQ(bytes_of(buffer), "xxxxxxxxxx");
    EXPECT_EQ(GST_BUFFER_PTS(buffer), pts);
    EXPECT_EQ(GST_BUFFER_DTS(buffer), pts - GST_SECOND);
    EXPECT_EQ(GST_BUFFER_DURATION(buffer), GST_SECOND);
    EXPECT_EQ(GST_BUFFER_OFFSET(buffer), 42U);
    EXPECT_NE(GST_BUFFER_FLAG_IS_SET(buffer, GST_BUFFER_FLAG_DELTA_UNIT), FALSE);
    EXPECT_EQ(next->caps, "video/x-test, n=(int)1");
    EXPECT_EQ(gst_segment_to_running_time(&next->segment, GST_FORMAT_TIME, pts),
              pts - 6 * GST_SECOND);
  }
}

TEST_F(gst_elements, caps_may_change_midway) {
  pipeline sink("appsrc name=in format=time ! " + at("gpushmsink") +
                "wait-for-consumers=1 slot-bytes=100");
  auto source = receive();
  source.play();
  sink.play();
  const auto in = sink.find("in");
  for (int n = 1; n <= 4; ++n) {
    const std::string text = "video/x-test, n=(int)" + std::to_string(n / 2);
    const caps_ptr caps(gst_caps_from_string(text.c_str()));
    g_object_set(in.get(), "caps", caps.get(), nullptr);
    GstBuffer* const buffer = gst_buffer_new_allocate(nullptr, static_cast<gsize>(n), nullptr);
    GstFlowReturn flow = GST_FLOW_OK;
    g_signal_emit_by_name(in.get(), "push-buffer", buffer, &flow);
    gst_buffer_unref(buffer);
  }
  const auto out = source.find("out");
  for (int n = 1; n <= 4; ++n) {
    const auto next = pull(out.get());
    ASSERT_TRUE(next);
    EXPECT_EQ(gst_buffer_get_size(next->buffer.get()), static_cast<gsize>(n));
    EXPECT_EQ(next->caps, "video/x-test, n=(int)" + std::to_string(n / 2));
  }
}

TEST_F(gst_elements, frames_with_another_layout_are_published_in_the_default_one) {
  pipeline sink(
      "appsrc name=in format=time caps=video/x-raw,format=GRAY8,width=4,height=2,"
      "framerate=30/1 ! " +
      at("gpushmsink") + "wait-for-consumers=1");
  auto source = receive();
  source.play();
  sink.play();
  GstBuffer* const buffer = gst_buffer_new_allocate(nullptr, 100, nullptr);
  gst_buffer_memset(buffer, 0, '.', 100);
  gst_buffer_fill(buffer, 10, "abcd", 4);
  gst_buffer_fill(buffer, 42, "efgh", 4);
  gsize offset[GST_VIDEO_MAX_PLANES] = {10};
  gint stride[GST_VIDEO_MAX_PLANES] = {32};
  gst_buffer_add_video_meta_full(
      buffer, GST_VIDEO_FRAME_FLAG_NONE, GST_VIDEO_FORMAT_GRAY8, 4, 2, 1, offset, stride);
  GstFlowReturn flow = GST_FLOW_OK;
  g_signal_emit_by_name(sink.find("in").get(), "push-buffer", buffer, &flow);
  gst_buffer_unref(buffer);
  const auto next = pull(source.find("out").get());
  ASSERT_TRUE(next);
  EXPECT_EQ(bytes_of(next->buffer.get()), "abcdefgh");
}

TEST_F(gst_elements, caps_of_4k_with_all_fields_fit) {
  for (const char* format : {"NV12", "RGB", "P010_10LE"}) {
    pipeline sink("appsrc name=in format=time ! " + at("gpushmsink", format) +
                  "slots=3 wait-for-consumers=1");
    pipeline source(at("gpushmsrc", format) + " ! appsink name=out sync=false");
    const std::string text =
        std::string("video/x-raw, format=(string)") + format +
        ", width=(int)3840, height=(int)2160, framerate=(fraction)60000/1001, "
        "interlace-mode=(string)progressive, multiview-mode=(string)mono, "
        "multiview-flags=(GstVideoMultiviewFlagsSet)0:ffffffff:/right-view-first/left-flipped/"
        "left-flopped/right-flipped/right-flopped/half-aspect/mixed-mono, "
        "pixel-aspect-ratio=(fraction)1/1, colorimetry=(string)1:3:5:1, chroma-site=(string)mpeg2";
    const caps_ptr caps(gst_caps_from_string(text.c_str()));
    ASSERT_TRUE(caps);
    const auto in = sink.find("in");
    g_object_set(in.get(), "caps", caps.get(), nullptr);
    GstVideoInfo info;
    ASSERT_TRUE(gst_video_info_from_caps(&info, caps.get()) != FALSE);
    source.play();
    sink.play();
    GstBuffer* const buffer = gst_buffer_new_allocate(nullptr, info.size, nullptr);
    GstFlowReturn flow = GST_FLOW_OK;
    g_signal_emit_by_name(in.get(), "push-buffer", buffer, &flow);
    gst_buffer_unref(buffer);
    const auto next = pull(source.find("out").get());
    ASSERT_TRUE(next) << sink.end();
    const caps_ptr got(gst_caps_from_string(next->caps.c_str()));
    GstVideoInfo got_info;
    ASSERT_TRUE(gst_video_info_from_caps(&got_info, got.get()) != FALSE) << next->caps;
    EXPECT_EQ(got_info.finfo, info.finfo) << next->caps;
    EXPECT_EQ(got_info.size, info.size);
    EXPECT_EQ(got_info.fps_n, info.fps_n);
    EXPECT_EQ(got_info.fps_d, info.fps_d);
    EXPECT_EQ(got_info.par_n, info.par_n);
    EXPECT_EQ(got_info.par_d, info.par_d);
    EXPECT_EQ(got_info.interlace_mode, info.interlace_mode);
    EXPECT_EQ(got_info.chroma_site, info.chroma_site);
    EXPECT_TRUE(gst_video_colorimetry_is_equal(&got_info.colorimetry, &info.colorimetry) != FALSE);
  }
}

TEST_F(gst_elements, stopping_ends_each_wait) {
  const auto stops = [](pipeline& waiting) {
    auto done = std::async(std::launch::async, [&] { waiting.set(GST_STATE_NULL); });
    const bool in_time = done.wait_for(30s) == std::future_status::ready;
    EXPECT_TRUE(in_time);
    return in_time;
  };
  const std::string frames = "videotestsrc ! video/x-raw,format=GRAY8,width=512,height=512 ! ";
  const std::string never = "2000000000 ";
  pipeline lonely(frames + at("gpushmsink", "lonely") +
                  "wait-for-consumers=1 acquire-timeout=" + never);
  lonely.play();
  gpushm::client client = connect();
  gpushm::open_options waiting;
  waiting.timeout = 30s;
  static_cast<void>(client.open("lonely", waiting));  // the channel exists: it waits for a consumer
  ASSERT_TRUE(stops(lonely));

  pipeline nameless(at("gpushmsrc", "nothing") + "timeout=" + never + "! fakesink");
  nameless.play();
  ASSERT_TRUE(stops(nameless));

  // A consumer that does not release stops the sink; then the source waits for the next item.
  pipeline full(frames + at("gpushmsink") + "slots=2 acquire-timeout=" + never);
  full.play();
  static_cast<void>(client.open("c", waiting));
  auto consumer = gpushm::channel_consumer::open(client, "c");
  const auto first = consumer.next(30s);
  const auto second = consumer.next(30s);
  ASSERT_TRUE(first && second);
  ASSERT_FALSE(consumer.next(100ms));
  full.set(GST_STATE_PAUSED);
  full.play();
  auto hungry = receive("timeout=" + never);
  hungry.play();
  ASSERT_TRUE(stops(hungry));
  ASSERT_TRUE(stops(full));
}

TEST_F(gst_elements, paused_sink_continues_with_the_buffer_that_waited) {
  pipeline sink("videotestsrc num-buffers=5 ! video/x-raw,format=GRAY8,width=512,height=512 ! " +
                at("gpushmsink") + "slots=1 wait-for-consumers=1 acquire-timeout=60000");
  sink.play();
  gpushm::client client = connect();
  auto consumer = gpushm::channel_consumer::open(client, "c", {.timeout = 30s});
  auto first = consumer.next(30s);
  ASSERT_TRUE(first);
  sink.set(GST_STATE_PAUSED);
  first->release();
  sink.play();
  for (std::uint64_t number = 2; number <= 5; ++number) {
    auto next = consumer.next(30s);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->number(), number);
    next->release();
  }
  EXPECT_FALSE(consumer.next(30s));
  EXPECT_TRUE(consumer.has_ended());
}

TEST_F(gst_elements, hostile_items_are_errors) {
  namespace format = gpushm::gstreamer;
  const std::string next_step = " (see what publishes into this channel (gpushmsink must))";
  EXPECT_EQ(end_after_item({}),
            "receive \"c\": the item was not published by gpushmsink" + next_step);
  format::item_metadata value;
  value.size = 1'001;  // more than the slot
  EXPECT_EQ(end_after_item(format::encode(value)),
            "receive \"c\": the item's metadata are not valid" + next_step);
  value.size = 1'000;
  for (const char* caps : {"no caps (",
                           "ANY",
                           "EMPTY",
                           "NONE",
                           "video/x-raw,format={NV12,RGB}",
                           "a/b;c/d",
                           "video/x-raw(memory:CUDAMemory),format=NV12,width=2,height=2",
                           "video/x-raw,format=NV12",
                           "video/x-raw,format=NV12,width=-1,height=2",
                           "video/x-raw,format=NV12,width=2147483647,height=2147483647",
                           "video/x-raw,format=[1,2]"}) {
    value.caps = caps;
    EXPECT_EQ(end_after_item(format::encode(value)),
              "receive \"c\": the item's caps are not valid" + next_step)
        << caps;
  }
  value.caps = "video/x-raw,format=GRAY8,width=1000,height=1000,framerate=30/1";
  EXPECT_EQ(end_after_item(format::encode(value)),
            "receive \"c\": the item is smaller than a frame of its caps" + next_step);
}

TEST_F(gst_elements, empty_buffers_are_delivered) {
  pipeline sink("appsrc name=in format=time caps=video/x-test ! " + at("gpushmsink") +
                "wait-for-consumers=1");
  auto source = receive();
  source.play();
  sink.play();
  GstBuffer* const buffer = gst_buffer_new();
  GstFlowReturn flow = GST_FLOW_OK;
  g_signal_emit_by_name(sink.find("in").get(), "push-buffer", buffer, &flow);
  gst_buffer_unref(buffer);
  const auto next = pull(source.find("out").get());
  ASSERT_TRUE(next);
  EXPECT_EQ(gst_buffer_get_size(next->buffer.get()), 0U);
}

}  // namespace
}  // namespace gpushm_tests
