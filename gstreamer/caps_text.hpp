// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gst/gst.h>

#include <cstddef>
#include <memory>
#include <string>

namespace gpushm::gstreamer {

struct caps_unref {
  void operator()(GstCaps* caps) const noexcept { gst_caps_unref(caps); }
};
using caps_ptr = std::unique_ptr<GstCaps, caps_unref>;

/// Fixed caps as text of at most `max_bytes`, which `caps_from_text` reads: the short form. Of
/// video/x-raw, fields that have their default value are left out if the text does not fit
/// otherwise. Empty if it does not fit then, or if the caps cannot be written as printable text.
[[nodiscard]] std::string caps_to_text(const GstCaps* caps, std::size_t max_bytes);

/// Returns null if the text, which may be an attacker's, is not one fixed structure in system
/// memory.
[[nodiscard]] caps_ptr caps_from_text(const std::string& text);

}  // namespace gpushm::gstreamer
