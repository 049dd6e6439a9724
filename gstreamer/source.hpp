// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <glib-object.h>

namespace gpushm::gstreamer {

/// The type of the element gpushmsrc.
[[nodiscard]] GType source_type();

}  // namespace gpushm::gstreamer
