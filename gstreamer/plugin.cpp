// SPDX-License-Identifier: Apache-2.0
// What GStreamer looks for in libgstgpushm.so.
#include <gst/gst.h>

#include "gpushm/gpushm.h"
#include "gstreamer/element_support.hpp"
#include "gstreamer/sink.hpp"
#include "gstreamer/source.hpp"

namespace {

gboolean begin(GstPlugin* plugin) {
  static_cast<void>(gpushm::gstreamer::debug_category());
  const bool is_registered =
      gst_element_register(plugin, "gpushmsink", GST_RANK_NONE, gpushm::gstreamer::sink_type()) !=
          FALSE &&
      gst_element_register(plugin, "gpushmsrc", GST_RANK_NONE, gpushm::gstreamer::source_type()) !=
          FALSE;
  return is_registered ? TRUE : FALSE;
}

}  // namespace

#define PACKAGE "gpushm"
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR,
                  GST_VERSION_MINOR,
                  gpushm,
                  const_cast<char*>("Channels of gpushm: buffers in shared memory"),
                  begin,
                  GPUSHM_VERSION_TEXT,
                  "Apache 2.0",
                  "gpushm",
                  "https://gstreamer.freedesktop.org")
