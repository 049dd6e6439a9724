// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm-oci-runtime/settings.hpp"
#include "containers/cdi/inject/config.hpp"

namespace gpushm::oci_runtime {

/// A device that a container requests.
struct requested_device {
  std::string name;    ///< as written: "0", "all", "none", "nvidia.com/gpu=0"
  std::string reason;  ///< "NVIDIA_VISIBLE_DEVICES=0"
  friend bool operator==(const requested_device&, const requested_device&) = default;
};

struct request {
  std::vector<requested_device> devices;
  /// The value of NVIDIA_DRIVER_CAPABILITIES, if it is set and not empty.
  std::optional<std::string> capabilities;
  /// The requests that are ignored, with the reasons.
  std::vector<std::string> ignored;
};

/// Returns a container's requests: by annotations, else by mounts, else by NVIDIA_VISIBLE_DEVICES,
/// each as far as `permitted` (provenance.hpp) allows. Throws `error` (invalid_argument) for an
/// annotation that contains anything but qualified names, and for an invalid config. Pure.
[[nodiscard]] request read_request(const cdi::oci_config& config, const settings& chosen);

}  // namespace gpushm::oci_runtime
