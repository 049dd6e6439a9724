// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::oci_runtime {

/// The settings of the configuration file (docs/oci-runtime.md).
struct settings {
  /// The real runtime: the first of these that exists.
  std::vector<std::string> runtimes{"runc", "crun"};
  std::vector<std::string> spec_dirs{"/etc/cdi", "/var/run/cdi"};
  /// The kind of devices that are requested without a qualified name.
  std::string default_kind = "nvidia.com/gpu";
  /// If empty, annotations request nothing. podman copies those of images (provenance.hpp).
  std::vector<std::string> annotation_prefixes;
  bool accept_mounts = false;
  bool accept_variable_unprivileged = false;  ///< on: any image can request GPUs
  bool filter_by_capabilities = true;
  std::vector<std::string> default_capabilities{"utility", "compute"};
  std::vector<std::string> supported_capabilities{
      "compat32", "compute", "display", "graphics", "ngx", "utility", "video"};
  std::string log;  ///< a file; empty: none
  bool log_json = false;
};

inline constexpr const char* default_settings_file = "/etc/gpushm/oci-runtime.yaml";

/// Parses YAML or JSON. Throws `error` (invalid_argument) with line and column for a setting that
/// is unknown, duplicate or of the wrong type. Pure; `file` is used in error messages.
[[nodiscard]] settings parse_settings(std::string_view text, const std::string& file);

/// Reads the file that $GPUSHM_OCI_RUNTIME_CONFIG names, which must exist, else
/// `default_settings_file`, which is optional. Throws as `parse_settings` does, and for a file that
/// cannot be read.
[[nodiscard]] settings load_settings();

}  // namespace gpushm::oci_runtime
