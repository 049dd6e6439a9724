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
#include <utility>

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

struct source_element {
  GstPushSrc parent;
  source_state* state;
};
struct source_class {
  GstPushSrcClass parent;
};

GObjectClass* source_parent = nullptr;

source_element* source_of(gpointer object) {
  return static_cast<source_element*>(object);
}

enum source_property : guint {
  source_channel = 1,
  source_socket,
  source_mode,
  source_held,
  source_copy,
  source_timeout,
};

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
  auto* const self = source_of(base);
  GST_OBJECT_LOCK(base);
  auto settings = self->state->settings;
  GST_OBJECT_UNLOCK(base);
  self->state->channel = std::make_unique<receiver>(std::move(settings));
  self->state->segment_start.reset();
  self->state->segment_base = 0;
  self->state->end = 0;
  self->state->gate.open();
  return TRUE;
}

/// Memory that is still in use keeps the consumer.
gboolean source_stop(GstBaseSrc* base) {
  source_of(base)->state->channel.reset();
  return TRUE;
}

gboolean source_unlock(GstBaseSrc* base) {
  source_of(base)->state->gate.close();
  return TRUE;
}

gboolean source_unlock_stop(GstBaseSrc* base) {
  source_of(base)->state->gate.open();
  return TRUE;
}

/// A consumer that joins late must not wait until the running time of the producer has passed: the
/// first buffer is due at once. Likewise after another producer has continued the channel.
void follow_times(source_element* self, const item_metadata& times) {
  auto& state = *self->state;
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
    gst_base_src_new_segment(static_cast<GstBaseSrc*>(static_cast<gpointer>(self)), &segment);
    state.segment_start = at;
    state.segment_base = segment.base;
  }
  const GstClockTime duration = times.duration == no_time ? 0 : times.duration;
  // An attacker's times may overflow: each result is as good as another one then.
  state.end = std::max(state.end, state.segment_base + (at - *state.segment_start) + duration);
}

GstBuffer* buffer_from(source_element* self, const received& received) {
  auto* const base = static_cast<GstBaseSrc*>(static_cast<gpointer>(self));
  GstBuffer* const buffer = gst_buffer_new();
  if (received.memory != nullptr) {
    gst_buffer_append_memory(buffer, received.memory);
  }
  const item_metadata& metadata = received.metadata;
  if (gst_base_src_get_do_timestamp(base) == FALSE) {
    GST_BUFFER_PTS(buffer) = metadata.pts;
    GST_BUFFER_DTS(buffer) = metadata.dts;
    if (gst_base_src_is_live(base) == FALSE) {
      follow_times(self, metadata);
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
  auto* const self = source_of(push);
  auto* const element = static_cast<GstElement*>(static_cast<gpointer>(push));
  try {
    const received next = self->state->channel->next(self->state->gate.token());
    if (next.what != received::kind::buffer) {
      return next.what == received::kind::end ? GST_FLOW_EOS : GST_FLOW_FLUSHING;
    }
    GstBuffer* const made = buffer_from(self, next);
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

void source_set_property(GObject* object, guint id, const GValue* value, GParamSpec* spec) {
  auto* const self = source_of(object);
  GST_OBJECT_LOCK(object);
  auto& settings = self->state->settings;
  switch (id) {
    case source_channel:
      settings.channel = text_of(value);
      break;
    case source_socket:
      settings.socket = text_of(value);
      break;
    case source_mode:
      settings.mode = static_cast<consumer_mode>(g_value_get_enum(value));
      break;
    case source_held:
      settings.held = g_value_get_uint(value);
      break;
    case source_copy:
      settings.copy = g_value_get_boolean(value) != FALSE;
      break;
    case source_timeout:
      settings.timeout = std::chrono::milliseconds(g_value_get_uint(value));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
      break;
  }
  const bool is_live = settings.mode == consumer_mode::latest;
  GST_OBJECT_UNLOCK(object);
  if (id == source_mode) {
    auto* const base = static_cast<GstBaseSrc*>(static_cast<gpointer>(object));
    gst_base_src_set_live(base, is_live ? TRUE : FALSE);
    gst_base_src_set_do_timestamp(base, is_live ? TRUE : FALSE);
  }
}

void source_get_property(GObject* object, guint id, GValue* value, GParamSpec* spec) {
  GST_OBJECT_LOCK(object);
  const auto& settings = source_of(object)->state->settings;
  switch (id) {
    case source_channel:
      g_value_set_string(value, settings.channel.c_str());
      break;
    case source_socket:
      g_value_set_string(value, settings.socket.c_str());
      break;
    case source_mode:
      g_value_set_enum(value, static_cast<gint>(settings.mode));
      break;
    case source_held:
      g_value_set_uint(value, settings.held);
      break;
    case source_copy:
      g_value_set_boolean(value, settings.copy ? TRUE : FALSE);
      break;
    case source_timeout:
      g_value_set_uint(value, static_cast<guint>(settings.timeout.count()));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
      break;
  }
  GST_OBJECT_UNLOCK(object);
}

void source_finalize(GObject* object) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
  delete source_of(object)->state;
  source_parent->finalize(object);
}

void install_source_properties(GObjectClass* type) {
  const source_settings defaults;
  const auto flags = static_cast<GParamFlags>(static_cast<int>(G_PARAM_READWRITE) |
                                              static_cast<int>(G_PARAM_STATIC_STRINGS) |
                                              static_cast<int>(GST_PARAM_MUTABLE_READY));
  const auto install = [type](guint id, GParamSpec* spec) {
    g_object_class_install_property(type, id, spec);
  };
  install(source_channel,
          g_param_spec_string("channel", "Channel", "Name of the channel", "", flags));
  install(source_socket,
          g_param_spec_string("socket",
                              "Socket",
                              "Path of the broker's socket; empty: $GPUSHM_SOCKET, else the one "
                              "domain of this machine",
                              "",
                              flags));
  install(source_mode,
          g_param_spec_enum("mode",
                            "Mode",
                            "Which items it gets; latest makes it a live source, and sets "
                            "do-timestamp",
                            mode_type(),
                            static_cast<gint>(defaults.mode),
                            flags));
  install(source_held,
          g_param_spec_uint("held",
                            "Held",
                            "With mode=latest: items that it may hold, of which one is for the "
                            "next buffer; further buffers are copied",
                            1,
                            GPUSHM_MAX_HELD_ITEMS,
                            defaults.held,
                            flags));
  install(source_copy,
          g_param_spec_boolean("copy",
                               "Copy",
                               "Copy each item, and release it at once",
                               defaults.copy ? TRUE : FALSE,
                               flags));
  install(source_timeout,
          g_param_spec_uint("timeout",
                            "Timeout",
                            "Milliseconds to wait for the broker, for the channel, and for each "
                            "item; then the element fails",
                            1,
                            G_MAXINT,
                            static_cast<guint>(defaults.timeout.count()),
                            flags));
}

void source_class_init(gpointer type, gpointer /*data*/) {
  source_parent = static_cast<GObjectClass*>(g_type_class_peek_parent(type));
  auto* const object = static_cast<GObjectClass*>(type);
  object->set_property = &source_set_property;
  object->get_property = &source_get_property;
  object->finalize = &source_finalize;
  install_source_properties(object);

  auto* const element = static_cast<GstElementClass*>(type);
  gst_element_class_set_static_metadata(element,
                                        "gpushm channel source",
                                        "Source",
                                        "Gets buffers from a channel of shared memory",
                                        "the gpushm authors");
  GstCaps* const any = gst_caps_new_any();
  gst_element_class_add_pad_template(element,
                                     gst_pad_template_new("src", GST_PAD_SRC, GST_PAD_ALWAYS, any));
  gst_caps_unref(any);

  auto* const base = static_cast<GstBaseSrcClass*>(type);
  base->start = &source_start;
  base->stop = &source_stop;
  base->unlock = &source_unlock;
  base->unlock_stop = &source_unlock_stop;
  static_cast<GstPushSrcClass*>(type)->create = &source_create;
}

void source_init(GTypeInstance* instance, gpointer /*type*/) {
  auto* const self = source_of(instance);
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
  self->state = new source_state;
  gst_base_src_set_format(&self->parent.parent, GST_FORMAT_TIME);
}

}  // namespace

GType source_type() {
  static const GType type = g_type_register_static_simple(GST_TYPE_PUSH_SRC,
                                                          "GstGpushmSrc",
                                                          sizeof(source_class),
                                                          &source_class_init,
                                                          sizeof(source_element),
                                                          &source_init,
                                                          GTypeFlags{});
  return type;
}

}  // namespace gpushm::gstreamer
