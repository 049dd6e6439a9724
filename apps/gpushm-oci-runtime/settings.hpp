// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::oci_runtime {

/// What the configuration file says (docs/oci-runtime.md).
struct settings {
  /// The real runtime: the first of these that is there.
  std::vector<std::string> runtimes{"runc", "crun"};
  std::vector<std::string> spec_dirs{"/etc/cdi", "/var/run/cdi"};
  /// Of devices that are asked for by less than a qualified name.
  std::string default_kind = "nvidia.com/gpu";
  std::vector<std::string> annotation_prefixes{"cdi.k8s.io/"};
  bool accept_mounts = false;
  bool accept_variable_unprivileged = true;
  bool filter_by_capabilities = true;
  std::vector<std::string> default_capabilities{"utility", "compute"};
  std::vector<std::string> supported_capabilities{
      "compat32", "compute", "display", "graphics", "ngx", "utility", "video"};
  std::string log;  ///< a file; empty: none
  bool log_json = false;
};

inline constexpr const char* default_settings_file = "/etc/gpushm/oci-runtime.yaml";

/// From YAML or JSON. Throws `error` (invalid_argument) with line and column for what is unknown,
/// comes twice, or is of another type. Pure; `file` is what errors name.
[[nodiscard]] settings parse_settings(std::string_view text, const std::string& file);

/// From the file that $GPUSHM_OCI_RUNTIME_CONFIG names, which must be there, else from
/// `default_settings_file`, which need not. Throws as `parse_settings` does, and for a file that
/// cannot be read.
[[nodiscard]] settings load_settings();

}  // namespace gpushm::oci_runtime
