// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <nanobind/stl/string.h>

#include "in_python.hpp"

namespace gpushm_python {

namespace nb = nanobind;

std::string to_device(nb::handle device) {
  if (device.is_none()) {
    return {};
  }
  if (nb::isinstance<nb::str>(device)) {
    auto text = nb::cast<std::string>(device);
    // "cuda" is the current device of PyTorch, which the library does not know.
    if (!text.empty() && text != "cuda") {
      return text;
    }
  }
  return nb::cast<std::string>(in_python("gpushm._devices", "device_text", device));
}

}  // namespace gpushm_python
