// SPDX-License-Identifier: Apache-2.0
// The element gpushmsink.
#include "gstreamer/sink.hpp"

#include <gst/base/gstbasesink.h>
#include <gst/gst.h>

#include <memory>
#include <new>
#include <vector>

#include "gstreamer/element.hpp"
#include "gstreamer/element_support.hpp"
#include "gstreamer/publisher.hpp"

namespace gpushm::gstreamer {

namespace {

struct sink_state {
  sink_settings settings;  // the element's object lock
  wait_gate gate;
  std::unique_ptr<publisher> channel;  // the streaming thread
};

using sink = element_type<GstBaseSink, GstBaseSinkClass, sink_state>;

/// Runs `subject`, which throws; false: it has failed, and the element's error was posted. A
/// failure because of unlock() only sets `stopped`.
template <typename What>
bool run(GstBaseSink* self, bool* stopped, What&& subject) {
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
  auto& state = sink::state_of(base);
  state.channel = std::make_unique<publisher>(sink::settings_of(base));
  state.gate.open();
  return TRUE;
}

gboolean sink_set_caps(GstBaseSink* base, GstCaps* caps) {
  bool stopped = false;  // it does not wait
  return run(base, &stopped, [&] { sink::state_of(base).channel->set_caps(caps); }) ? TRUE : FALSE;
}

/// The channel exists from the first buffer on, also if the pipeline is paused.
GstFlowReturn sink_preroll(GstBaseSink* base, GstBuffer* buffer) {
  auto& state = sink::state_of(base);
  bool stopped = false;
  if (!run(base, &stopped, [&] { state.channel->open(buffer, state.gate.token()); })) {
    return GST_FLOW_ERROR;
  }
  return stopped ? GST_FLOW_FLUSHING : GST_FLOW_OK;
}

GstFlowReturn sink_render(GstBaseSink* base, GstBuffer* buffer) {
  auto& state = sink::state_of(base);
  for (;;) {
    bool stopped = false;
    if (!run(base, &stopped, [&] {
          stopped = !state.channel->publish(buffer, times_of(base, buffer), state.gate.token());
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
    if (auto* const channel = sink::state_of(base).channel.get()) {
      channel->close();
    }
  }
  return sink::parent_class()->event(base, event);
}

std::vector<property<sink_settings>> sink_properties() {
  auto properties = channel_properties<sink_settings>();
  properties.push_back(number_property("slots",
                                       "Slots",
                                       "Number of slots of the channel",
                                       1,
                                       GPUSHM_MAX_CHANNEL_SLOTS,
                                       &sink_settings::slots));
  properties.push_back({g_param_spec_uint64("slot-bytes",
                                            "Slot bytes",
                                            "Size of a slot; 0: that of a frame of the video caps, "
                                            "else that of the first buffer",
                                            0,
                                            G_MAXINT64,
                                            0,
                                            property_flags),
                        [](sink_settings& settings, const GValue* value) {
                          settings.slot_bytes = g_value_get_uint64(value);
                        },
                        [](const sink_settings& settings, GValue* value) {
                          g_value_set_uint64(value, settings.slot_bytes);
                        }});
  properties.push_back(time_property("acquire-timeout",
                                     "Acquire timeout",
                                     "Milliseconds to wait for the broker, for consumers and for a "
                                     "free slot; then the element fails",
                                     0,
                                     &sink_settings::acquire_timeout));
  properties.push_back(number_property("wait-for-consumers",
                                       "Wait for consumers",
                                       "The first buffer waits for this number of consumers",
                                       0,
                                       GPUSHM_MAX_CHANNEL_CONSUMERS,
                                       &sink_settings::consumers));
  return properties;
}

void sink_class_init(gpointer type, gpointer /*data*/) {
  sink::init_class(type,
                   sink_properties(),
                   "gpushm channel sink",
                   "Sink",
                   "Publishes buffers into a channel of shared memory",
                   "sink",
                   GST_PAD_SINK);
  auto* const base = static_cast<GstBaseSinkClass*>(type);
  base->start = &sink_start;
  base->stop = &sink::stop<GstBaseSink>;
  base->unlock = &sink::unlock<GstBaseSink>;
  base->unlock_stop = &sink::unlock_stop<GstBaseSink>;
  base->set_caps = &sink_set_caps;
  base->preroll = &sink_preroll;
  base->render = &sink_render;
  base->event = &sink_event;
}

void sink_init(GTypeInstance* instance, gpointer /*type*/) {
  sink::init_instance(instance);
  // Buffers are published when they come; consumers wait for their times.
  gst_base_sink_set_sync(static_cast<GstBaseSink*>(static_cast<gpointer>(instance)), FALSE);
}

}  // namespace

GType sink_type() {
  static const GType type =
      sink::register_type(GST_TYPE_BASE_SINK, "GstGpushmSink", &sink_class_init, &sink_init);
  return type;
}

}  // namespace gpushm::gstreamer
