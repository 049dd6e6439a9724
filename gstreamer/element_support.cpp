// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/element_support.hpp"

namespace gpushm::gstreamer {

GstDebugCategory* debug_category() {
  static GstDebugCategory* const category =
      _gst_debug_category_new("gpushm", 0, "buffers in shared memory");
  return category;
}

void post_error(GstElement* element, GQuark domain, gint code, const std::string& text) {
  gst_element_message_full(element,
                           GST_MESSAGE_ERROR,
                           domain,
                           code,
                           g_strdup(text.c_str()),
                           nullptr,
                           __FILE__,
                           static_cast<const char*>(__func__),
                           __LINE__);
}

void post_error(GstElement* element, const error& why, bool writes) {
  gint code = writes ? GST_RESOURCE_ERROR_WRITE : GST_RESOURCE_ERROR_READ;
  switch (why.code()) {
    case errc::no_such_segment:
    case errc::broker_unreachable:
      code = GST_RESOURCE_ERROR_NOT_FOUND;
      break;
    case errc::already_exists:
      code = GST_RESOURCE_ERROR_BUSY;
      break;
    case errc::permission_denied:
      code = GST_RESOURCE_ERROR_NOT_AUTHORIZED;
      break;
    case errc::quota_exceeded:
    case errc::out_of_memory:
      code = GST_RESOURCE_ERROR_NO_SPACE_LEFT;
      break;
    case errc::invalid_argument:
    case errc::size_mismatch:
      code = GST_RESOURCE_ERROR_SETTINGS;
      break;
    default:
      break;
  }
  post_error(element, GST_RESOURCE_ERROR, code, why.what());
}

bool post_failure(GstElement* element, bool writes) {
  try {
    throw;
  } catch (const error& why) {
    if (why.code() == errc::cancelled) {
      return false;
    }
    post_error(element, why, writes);
  } catch (const std::exception& why) {
    post_error(element, GST_LIBRARY_ERROR, GST_LIBRARY_ERROR_FAILED, why.what());
  }
  return true;
}

client connect_to(const std::string& socket,
                  std::chrono::milliseconds timeout,
                  const std::stop_token& stop) {
  connect_options options;
  options.socket_path = socket;
  options.timeout = timeout;
  options.stop = stop;
  return client::connect(options);
}

std::string text_of(const GValue* value) {
  const char* const text = g_value_get_string(value);
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace gpushm::gstreamer
