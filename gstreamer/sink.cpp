// SPDX-License-Identifier: Apache-2.0
// The element gpushmsink.
#include "gstreamer/sink.hpp"

#include <gst/base/gstbasesink.h>
#include <gst/gst.h>

#include <memory>
#include <new>
#include <utility>

#include "gstreamer/element_support.hpp"
#include "gstreamer/publisher.hpp"

namespace gpushm::gstreamer {

namespace {

struct sink_state {
  sink_settings settings;  // the element's object lock
  wait_gate gate;
  std::unique_ptr<publisher> channel;  // the streaming thread
};

struct sink_element {
  GstBaseSink parent;
  sink_state* state;
};
struct sink_class {
  GstBaseSinkClass parent;
};

GstBaseSinkClass* sink_parent = nullptr;

sink_element* sink_of(gpointer object) {
  return static_cast<sink_element*>(object);
}

enum sink_property : guint {
  sink_channel = 1,
  sink_socket,
  sink_slots,
  sink_slot_bytes,
  sink_acquire_timeout,
  sink_wait_for_consumers,
};

/// Runs `subject`, which throws; false: it has failed, and the element's error was posted. A
/// failure because of unlock() only sets `stopped`.
template <typename What>
bool run(sink_element* self, bool* stopped, What&& subject) {
  auto* const element = static_cast<GstElement*>(static_cast<gpointer>(self));
  try {
    subject();
    return true;
  } catch (...) {
    *stopped = !post_failure(element, true);
    return *stopped;
  }
}

/// In running time, which consumers understand without the producer's segment.
guint64 running_time(const GstSegment& segment, GstClockTime time) {
  if (!GST_CLOCK_TIME_IS_VALID(time)) {
    return no_time;
  }
  return segment.format == GST_FORMAT_TIME
             ? gst_segment_to_running_time(&segment, GST_FORMAT_TIME, time)
             : time;
}

item_metadata times_of(GstBaseSink* base, GstBuffer* buffer) {
  item_metadata times;
  times.pts = running_time(base->segment, GST_BUFFER_PTS(buffer));
  times.dts = running_time(base->segment, GST_BUFFER_DTS(buffer));
  times.duration = GST_BUFFER_DURATION(buffer);
  times.offset = GST_BUFFER_OFFSET(buffer);
  times.flags = GST_BUFFER_FLAGS(buffer) & known_flags;
  return times;
}

gboolean sink_start(GstBaseSink* base) {
  auto* const self = sink_of(base);
  GST_OBJECT_LOCK(base);
  auto settings = self->state->settings;
  GST_OBJECT_UNLOCK(base);
  self->state->channel = std::make_unique<publisher>(std::move(settings));
  self->state->gate.open();
  return TRUE;
}

gboolean sink_stop(GstBaseSink* base) {
  sink_of(base)->state->channel.reset();
  return TRUE;
}

gboolean sink_unlock(GstBaseSink* base) {
  sink_of(base)->state->gate.close();
  return TRUE;
}

gboolean sink_unlock_stop(GstBaseSink* base) {
  sink_of(base)->state->gate.open();
  return TRUE;
}

gboolean sink_set_caps(GstBaseSink* base, GstCaps* caps) {
  auto* const self = sink_of(base);
  bool stopped = false;  // it does not wait
  return run(self, &stopped, [&] { self->state->channel->set_caps(caps); }) ? TRUE : FALSE;
}

/// The channel exists from the first buffer on, also if the pipeline is paused.
GstFlowReturn sink_preroll(GstBaseSink* base, GstBuffer* buffer) {
  auto* const self = sink_of(base);
  bool stopped = false;
  if (!run(
          self, &stopped, [&] { self->state->channel->open(buffer, self->state->gate.token()); })) {
    return GST_FLOW_ERROR;
  }
  return stopped ? GST_FLOW_FLUSHING : GST_FLOW_OK;
}

GstFlowReturn sink_render(GstBaseSink* base, GstBuffer* buffer) {
  auto* const self = sink_of(base);
  for (;;) {
    bool stopped = false;
    if (!run(self, &stopped, [&] {
          stopped = !self->state->channel->publish(
              buffer, times_of(base, buffer), self->state->gate.token());
        })) {
      return GST_FLOW_ERROR;
    }
    if (!stopped) {
      return GST_FLOW_OK;
    }
    // Paused: continue with this buffer later.
    if (const GstFlowReturn flow = gst_base_sink_wait_preroll(base); flow != GST_FLOW_OK) {
      return flow;
    }
  }
}

gboolean sink_event(GstBaseSink* base, GstEvent* event) {
  if (GST_EVENT_TYPE(event) == GST_EVENT_EOS) {
    if (auto* const channel = sink_of(base)->state->channel.get()) {
      channel->close();
    }
  }
  return sink_parent->event(base, event);
}

void sink_set_property(GObject* object, guint id, const GValue* value, GParamSpec* spec) {
  GST_OBJECT_LOCK(object);
  auto& settings = sink_of(object)->state->settings;
  switch (id) {
    case sink_channel:
      settings.channel = text_of(value);
      break;
    case sink_socket:
      settings.socket = text_of(value);
      break;
    case sink_slots:
      settings.slots = g_value_get_uint(value);
      break;
    case sink_slot_bytes:
      settings.slot_bytes = g_value_get_uint64(value);
      break;
    case sink_acquire_timeout:
      settings.acquire_timeout = std::chrono::milliseconds(g_value_get_uint(value));
      break;
    case sink_wait_for_consumers:
      settings.consumers = g_value_get_uint(value);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
      break;
  }
  GST_OBJECT_UNLOCK(object);
}

void sink_get_property(GObject* object, guint id, GValue* value, GParamSpec* spec) {
  GST_OBJECT_LOCK(object);
  const auto& settings = sink_of(object)->state->settings;
  switch (id) {
    case sink_channel:
      g_value_set_string(value, settings.channel.c_str());
      break;
    case sink_socket:
      g_value_set_string(value, settings.socket.c_str());
      break;
    case sink_slots:
      g_value_set_uint(value, settings.slots);
      break;
    case sink_slot_bytes:
      g_value_set_uint64(value, settings.slot_bytes);
      break;
    case sink_acquire_timeout:
      g_value_set_uint(value, static_cast<guint>(settings.acquire_timeout.count()));
      break;
    case sink_wait_for_consumers:
      g_value_set_uint(value, settings.consumers);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID(object, id, spec);
      break;
  }
  GST_OBJECT_UNLOCK(object);
}

void sink_finalize(GObject* object) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
  delete sink_of(object)->state;
  static_cast<GObjectClass*>(static_cast<gpointer>(sink_parent))->finalize(object);
}

void install_sink_properties(GObjectClass* type) {
  const sink_settings defaults;
  const auto flags = static_cast<GParamFlags>(static_cast<int>(G_PARAM_READWRITE) |
                                              static_cast<int>(G_PARAM_STATIC_STRINGS) |
                                              static_cast<int>(GST_PARAM_MUTABLE_READY));
  const auto install = [type](guint id, GParamSpec* spec) {
    g_object_class_install_property(type, id, spec);
  };
  install(sink_channel,
          g_param_spec_string("channel", "Channel", "Name of the channel", "", flags));
  install(sink_socket,
          g_param_spec_string("socket",
                              "Socket",
                              "Path of the broker's socket; empty: $GPUSHM_SOCKET, else the one "
                              "domain of this machine",
                              "",
                              flags));
  install(sink_slots,
          g_param_spec_uint("slots",
                            "Slots",
                            "Number of slots of the channel",
                            1,
                            GPUSHM_MAX_CHANNEL_SLOTS,
                            defaults.slots,
                            flags));
  install(sink_slot_bytes,
          g_param_spec_uint64("slot-bytes",
                              "Slot bytes",
                              "Size of a slot; 0: that of a frame of the video caps, else that of "
                              "the first buffer",
                              0,
                              G_MAXINT64,
                              0,
                              flags));
  install(sink_acquire_timeout,
          g_param_spec_uint("acquire-timeout",
                            "Acquire timeout",
                            "Milliseconds to wait for the broker, for consumers and for a free "
                            "slot; then the element fails",
                            0,
                            G_MAXINT,
                            static_cast<guint>(defaults.acquire_timeout.count()),
                            flags));
  install(sink_wait_for_consumers,
          g_param_spec_uint("wait-for-consumers",
                            "Wait for consumers",
                            "The first buffer waits for this number of consumers",
                            0,
                            GPUSHM_MAX_CHANNEL_CONSUMERS,
                            defaults.consumers,
                            flags));
}

void sink_class_init(gpointer type, gpointer /*data*/) {
  sink_parent = static_cast<GstBaseSinkClass*>(g_type_class_peek_parent(type));
  auto* const object = static_cast<GObjectClass*>(type);
  object->set_property = &sink_set_property;
  object->get_property = &sink_get_property;
  object->finalize = &sink_finalize;
  install_sink_properties(object);

  auto* const element = static_cast<GstElementClass*>(type);
  gst_element_class_set_static_metadata(element,
                                        "gpushm channel sink",
                                        "Sink",
                                        "Publishes buffers into a channel of shared memory",
                                        "the gpushm authors");
  GstCaps* const any = gst_caps_new_any();
  gst_element_class_add_pad_template(
      element, gst_pad_template_new("sink", GST_PAD_SINK, GST_PAD_ALWAYS, any));
  gst_caps_unref(any);

  auto* const base = static_cast<GstBaseSinkClass*>(type);
  base->start = &sink_start;
  base->stop = &sink_stop;
  base->unlock = &sink_unlock;
  base->unlock_stop = &sink_unlock_stop;
  base->set_caps = &sink_set_caps;
  base->preroll = &sink_preroll;
  base->render = &sink_render;
  base->event = &sink_event;
}

void sink_init(GTypeInstance* instance, gpointer /*type*/) {
  auto* const self = sink_of(instance);
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): GObject allocates the element itself
  self->state = new sink_state;
  // Buffers are published when they come; consumers wait for their times.
  gst_base_sink_set_sync(&self->parent, FALSE);
}

}  // namespace

GType sink_type() {
  static const GType type = g_type_register_static_simple(GST_TYPE_BASE_SINK,
                                                          "GstGpushmSink",
                                                          sizeof(sink_class),
                                                          &sink_class_init,
                                                          sizeof(sink_element),
                                                          &sink_init,
                                                          GTypeFlags{});
  return type;
}

}  // namespace gpushm::gstreamer
