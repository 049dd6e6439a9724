// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm-oci-runtime/settings.hpp"
#include "cdi/inject/config.hpp"

namespace gpushm::oci_runtime {

/// A device that a container asks for.
struct wish {
  std::string name;    ///< as it stands there: "0", "all", "none", "nvidia.com/gpu=0"
  std::string reason;  ///< "NVIDIA_VISIBLE_DEVICES=0"
  friend bool operator==(const wish&, const wish&) = default;
};

struct request {
  std::vector<wish> wishes;
  /// The value of NVIDIA_DRIVER_CAPABILITIES, if it is set and not empty.
  std::optional<std::string> capabilities;
  /// What is there and does not count, and why.
  std::vector<std::string> ignored;
};

/// What a container asks for: by annotations, else by mounts where they are accepted, else by
/// NVIDIA_VISIBLE_DEVICES. Throws `error` (invalid_argument) for an annotation that holds anything
/// but qualified names, and for a config that is not one. Pure.
[[nodiscard]] request read_request(const cdi::oci_config& config, const settings& chosen);

}  // namespace gpushm::oci_runtime
