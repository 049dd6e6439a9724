// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/caps_text.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace gpushm::gstreamer {

namespace {

struct g_free_text {
  void operator()(char* text) const noexcept { g_free(text); }
};
using text_ptr = std::unique_ptr<char, g_free_text>;

std::string taken(char* text) {
  const text_ptr owned(text);
  return owned ? std::string(owned.get()) : std::string();
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// "NAME,FIELD=VALUE,…" without types; empty if a value cannot be written.
std::string short_form(const GstCaps* caps) {
  const GstStructure* const fields = gst_caps_get_structure(caps, 0);
  std::string text = gst_structure_get_name(fields);
  for (gint i = 0; i != gst_structure_n_fields(fields); ++i) {
    const char* const name = gst_structure_nth_field_name(fields, static_cast<guint>(i));
    const std::string value = taken(gst_value_serialize(gst_structure_get_value(fields, name)));
    if (value.empty()) {
      return {};
    }
    text.append(",").append(name).append("=").append(value);
  }
  return text;
}

/// Whether reading the text gives these caps again, types included.
bool gives(const std::string& text, const GstCaps* caps) {
  const caps_ptr read = caps_from_text(text);
  return read && gst_caps_is_strictly_equal(read.get(), caps) != FALSE;
}

std::string exact_text(const GstCaps* caps, std::size_t max_bytes) {
  const std::array forms{short_form(caps), taken(gst_caps_to_string(caps))};
  const auto fits = [&](const std::string& text) {
    return !text.empty() && text.size() <= max_bytes && is_printable(text) && gives(text, caps);
  };
  const auto at = std::find_if(forms.begin(), forms.end(), fits);
  return at == forms.end() ? std::string() : *at;
}

/// Fields of video/x-raw and the values that an absent one means.
constexpr std::array<std::pair<const char*, std::string_view>, 4> video_defaults{{
    {"multiview-flags", ""},
    {"multiview-mode", "mono"},
    {"interlace-mode", "progressive"},
    {"pixel-aspect-ratio", "1/1"},
}};

caps_ptr without_defaults(const GstCaps* caps) {
  caps_ptr result(gst_caps_copy(const_cast<GstCaps*>(caps)));  // a macro without const
  GstStructure* const fields = gst_caps_get_structure(result.get(), 0);
  for (const auto& [name, usual] : video_defaults) {
    const GValue* const value = gst_structure_get_value(fields, name);
    if (value == nullptr) {
      continue;
    }
    const bool is_usual = usual.empty() ? gst_value_get_flagset_flags(value) == 0
                                        : taken(gst_value_serialize(value)) == usual;
    if (is_usual) {
      gst_structure_remove_field(fields, name);
    }
  }
  return result;
}

}  // namespace

std::string caps_to_text(const GstCaps* caps, std::size_t max_bytes) {
  if (gst_caps_get_size(caps) != 1) {
    return {};
  }
  std::string text = exact_text(caps, max_bytes);
  if (text.empty() &&
      gst_structure_has_name(gst_caps_get_structure(caps, 0), "video/x-raw") != FALSE) {
    text = exact_text(without_defaults(caps).get(), max_bytes);
  }
  return text;
}

caps_ptr caps_from_text(const std::string& text) {
  caps_ptr read(gst_caps_from_string(text.c_str()));
  if (!read || gst_caps_is_any(read.get()) != FALSE || gst_caps_get_size(read.get()) != 1 ||
      gst_caps_is_fixed(read.get()) == FALSE) {
    return nullptr;
  }
  const GstCapsFeatures* const features = gst_caps_get_features(read.get(), 0);
  if (features != nullptr &&
      gst_caps_features_is_equal(features, GST_CAPS_FEATURES_MEMORY_SYSTEM_MEMORY) == FALSE) {
    return nullptr;
  }
  return read;
}

}  // namespace gpushm::gstreamer
