// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <glib-object.h>

namespace gpushm::gstreamer {

/// The type of the element gpushmsink.
[[nodiscard]] GType sink_type();

}  // namespace gpushm::gstreamer
