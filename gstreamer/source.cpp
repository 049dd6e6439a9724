// SPDX-License-Identifier: Apache-2.0
// The element gpushmsrc.
#include "gstreamer/source.hpp"

#include <gst/base/gstpushsrc.h>
#include <gst/gst.h>
#include <gst/video/video.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "gstreamer/element.hpp"
#include "gstreamer/element_support.hpp"
#include "gstreamer/receiver.hpp"

namespace gpushm::gstreamer {

namespace {

// The format's flags are GStreamer's.
static_assert(std::uint32_t{flag_discont} == std::uint32_t{GST_BUFFER_FLAG_DISCONT});
static_assert(std::uint32_t{flag_delta_unit} == std::uint32_t{GST_BUFFER_FLAG_DELTA_UNIT});
static_assert(std::uint32_t{flag_non_droppable} == std::uint32_t{GST_BUFFER_FLAG_NON_DROPPABLE});
static_assert(std::uint32_t{flag_interlaced} == std::uint32_t{GST_VIDEO_BUFFER_FLAG_INTERLACED});
static_assert(std::uint32_t{flag_one_field} == std::uint32_t{GST_VIDEO_BUFFER_FLAG_ONEFIELD});
static_assert(no_time == GST_CLOCK_TIME_NONE && no_offset == GST_BUFFER_OFFSET_NONE);

struct source_state {
  source_settings settings;  // the element's object lock
  wait_gate gate;
  // The streaming thread.
  std::unique_ptr<receiver> channel;
  std::optional<GstClockTime> segment_start;
  GstClockTime segment_base = 0;
  GstClockTime end = 0;  // of the latest buffer
};

using source = element_type<GstPushSrc, GstPushSrcClass, source_state>;

constexpr guint mode_id = 3;  // after those of channel_properties

GType mode_type() {
  static const std::array<GEnumValue, 3> values{{
      {GPUSHM_CONSUMER_BLOCK, "Each item; the producer waits for this consumer", "block"},
      {GPUSHM_CONSUMER_LATEST, "The newest item; the producer does not wait", "latest"},
      {0, nullptr, nullptr},
  }};
  static const GType type = g_enum_register_static("GstGpushmSrcMode", values.data());
  return type;
}

gboolean source_start(GstBaseSrc* base) {
  auto& state = source::state_of(base);
  state.channel = std::make_unique<receiver>(source::settings_of(base));
  state.segment_start.reset();
  state.segment_base = 0;
  state.end = 0;
  state.gate.open();
  return TRUE;
}

/// A consumer that joins late must not wait until the running time of the producer has passed: the
/// first buffer is due at once. Likewise after another producer has continued the channel.
void follow_times(GstBaseSrc* base, const item_metadata& times) {
  auto& state = source::state_of(base);
  const GstClockTime at = std::min(times.pts, times.dts);  // an unknown time is the largest number
  if (at == no_time) {
    return;
  }
  if (!state.segment_start || at < *state.segment_start) {
    GstSegment segment;
    gst_segment_init(&segment, GST_FORMAT_TIME);
    segment.base = state.end;
    segment.start = at;
    segment.time = at;
    segment.position = at;
    gst_base_src_new_segment(base, &segment);
    state.segment_start = at;
    state.segment_base = segment.base;
  }
  const GstClockTime duration = times.duration == no_time ? 0 : times.duration;
  // An attacker's times may overflow: each result is as good as another one then.
  state.end = std::max(state.end, state.segment_base + (at - *state.segment_start) + duration);
}

GstBuffer* buffer_from(GstBaseSrc* base, const received& received) {
  GstBuffer* const buffer = gst_buffer_new();
  if (received.memory != nullptr) {
    gst_buffer_append_memory(buffer, received.memory);
  }
  const item_metadata& metadata = received.metadata;
  if (gst_base_src_get_do_timestamp(base) == FALSE) {
    GST_BUFFER_PTS(buffer) = metadata.pts;
    GST_BUFFER_DTS(buffer) = metadata.dts;
    if (gst_base_src_is_live(base) == FALSE) {
      follow_times(base, metadata);
    }
  }
  GST_BUFFER_DURATION(buffer) = metadata.duration;
  GST_BUFFER_OFFSET(buffer) = metadata.offset;
  gst_buffer_set_flags(buffer, static_cast<GstBufferFlags>(metadata.flags));
  if (received.is_after_gap) {
    gst_buffer_set_flags(buffer, GST_BUFFER_FLAG_DISCONT);
  }
  return buffer;
}

GstFlowReturn source_create(GstPushSrc* push, GstBuffer** buffer) {
  auto& state = source::state_of(push);
  auto* const element = static_cast<GstElement*>(static_cast<gpointer>(push));
  try {
    const received next = state.channel->next(state.gate.token());
    if (next.what != received::kind::buffer) {
      return next.what == received::kind::end ? GST_FLOW_EOS : GST_FLOW_FLUSHING;
    }
    GstBuffer* const made = buffer_from(&push->parent, next);
    if (next.new_caps && gst_base_src_set_caps(&push->parent, next.new_caps.get()) == FALSE) {
      gst_buffer_unref(made);
      return GST_FLOW_NOT_NEGOTIATED;
    }
    *buffer = made;
    return GST_FLOW_OK;
  } catch (...) {
    return post_failure(element, false) ? GST_FLOW_ERROR : GST_FLOW_FLUSHING;
  }
}

/// The mode decides whether the source is live.
void source_set_property(GObject* object, guint id, const GValue* value, GParamSpec* spec) {
  source::set_property(object, id, value, spec);
  const bool is_live = source::settings_of(object).mode == consumer_mode::latest;
  if (id == mode_id) {
    auto* const base = static_cast<GstBaseSrc*>(static_cast<gpointer>(object));
    gst_base_src_set_live(base, is_live ? TRUE : FALSE);
    gst_base_src_set_do_timestamp(base, is_live ? TRUE : FALSE);
  }
}

std::vector<property<source_settings>> source_properties() {
  const source_settings defaults;
  auto properties = channel_properties<source_settings>();
  properties.push_back({g_param_spec_enum("mode",
                                          "Mode",
                                          "Which items it gets; latest makes it a live source, and "
                                          "sets do-timestamp",
                                          mode_type(),
                                          static_cast<gint>(defaults.mode),
                                          property_flags),
                        [](source_settings& settings, const GValue* value) {
                          settings.mode = static_cast<consumer_mode>(g_value_get_enum(value));
                        },
                        [](const source_settings& settings, GValue* value) {
                          g_value_set_enum(value, static_cast<gint>(settings.mode));
                        }});
  properties.push_back(number_property("held",
                                       "Held",
                                       "With mode=latest: items that it may hold, of which one is "
                                       "for the next buffer; further buffers are copied",
                                       1,
                                       GPUSHM_MAX_HELD_ITEMS,
                                       &source_settings::held));
  properties.push_back({g_param_spec_boolean("copy",
                                             "Copy",
                                             "Copy each item, and release it at once",
                                             defaults.copy ? TRUE : FALSE,
                                             property_flags),
                        [](source_settings& settings, const GValue* value) {
                          settings.copy = g_value_get_boolean(value) != FALSE;
                        },
                        [](const source_settings& settings, GValue* value) {
                          g_value_set_boolean(value, settings.copy ? TRUE : FALSE);
                        }});
  properties.push_back(
      time_property("timeout",
                    "Timeout",
                    "Milliseconds to wait for the broker, for the channel, and for "
                    "each item; then the element fails",
                    1,
                    &source_settings::timeout));
  return properties;
}

void source_class_init(gpointer type, gpointer /*data*/) {
  source::init_class(type,
                     source_properties(),
                     "gpushm channel source",
                     "Source",
                     "Gets buffers from a channel of shared memory",
                     "src",
                     GST_PAD_SRC);
  static_cast<GObjectClass*>(type)->set_property = &source_set_property;

  auto* const base = static_cast<GstBaseSrcClass*>(type);
  base->start = &source_start;
  base->stop = &source::stop<GstBaseSrc>;
  base->unlock = &source::unlock<GstBaseSrc>;
  base->unlock_stop = &source::unlock_stop<GstBaseSrc>;
  static_cast<GstPushSrcClass*>(type)->create = &source_create;
}

void source_init(GTypeInstance* instance, gpointer /*type*/) {
  source::init_instance(instance);
  gst_base_src_set_format(static_cast<GstBaseSrc*>(static_cast<gpointer>(instance)),
                          GST_FORMAT_TIME);
}

}  // namespace

GType source_type() {
  static const GType type =
      source::register_type(GST_TYPE_PUSH_SRC, "GstGpushmSrc", &source_class_init, &source_init);
  return type;
}

}  // namespace gpushm::gstreamer
