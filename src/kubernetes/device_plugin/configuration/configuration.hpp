// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::device_plugin {

enum class mig_strategy { none, single, mixed };
enum class device_list_strategy { envvar, volume_mounts, cdi_annotations, cdi_cri };
enum class device_id_strategy { uuid, index };
/// Whether a container gets replicas of the least or the most used devices.
enum class replica_policy { distributed, packed };

/// The spelling in flags and in the file: "volume-mounts".
[[nodiscard]] std::string_view to_string(mig_strategy value);
[[nodiscard]] std::string_view to_string(device_list_strategy value);
[[nodiscard]] std::string_view to_string(device_id_strategy value);
[[nodiscard]] std::string_view to_string(replica_policy value);

// Each throws `error` (invalid_argument) for any other value; the error names the setting `setting`
// ("--mig-strategy").
[[nodiscard]] mig_strategy parse_mig_strategy(std::string_view text, std::string_view setting);
[[nodiscard]] device_id_strategy parse_device_id_strategy(std::string_view text,
                                                          std::string_view setting);
[[nodiscard]] replica_policy parse_replica_policy(std::string_view text, std::string_view setting);
/// One or more, separated by commas: "envvar,cdi-cri".
[[nodiscard]] std::set<device_list_strategy> parse_device_list_strategies(std::string_view text,
                                                                          std::string_view setting);

/// `flags` of the NVIDIA device plugin's file. Empty: not set; the accessors return the defaults.
struct plugin_flags {
  std::optional<mig_strategy> mig;
  std::optional<bool> fail_on_init_error;
  std::optional<std::string> driver_root;  ///< nvidiaDriverRoot
  std::optional<std::string> dev_root;     ///< nvidiaDevRoot
  std::optional<bool> gds;
  std::optional<bool> mofed;
  std::optional<bool> gdrcopy;
  std::optional<bool> pass_device_specs;
  std::optional<std::set<device_list_strategy>> device_list;
  std::optional<device_id_strategy> device_id;
  std::optional<std::string> cdi_annotation_prefix;
  bool operator==(const plugin_flags&) const = default;

  [[nodiscard]] mig_strategy mig_or_default() const { return mig.value_or(mig_strategy::none); }
  /// Defaults to `cdi_cri` only, which, unlike NVIDIA's default `envvar`, does not need NVIDIA's
  /// container runtime.
  [[nodiscard]] std::set<device_list_strategy> device_list_or_default() const {
    return device_list.value_or(std::set{device_list_strategy::cdi_cri});
  }
  [[nodiscard]] device_id_strategy device_id_or_default() const {
    return device_id.value_or(device_id_strategy::uuid);
  }
  [[nodiscard]] std::string cdi_annotation_prefix_or_default() const {
    return cdi_annotation_prefix.value_or("cdi.k8s.io/");
  }
};

/// Assigns a resource name to devices whose name matches a pattern.
struct naming {
  std::string pattern;  ///< '*' matches any text
  std::string name;     ///< with domain: "nvidia.com/a100"
  bool operator==(const naming&) const = default;
};

/// All devices when neither a count nor a list is set.
struct device_selection {
  std::uint64_t count = 0;         ///< the first `count` devices
  std::vector<std::string> names;  ///< "0", "0:1", "GPU-…", "MIG-…"
  bool operator==(const device_selection&) const = default;
};

struct replicated_resource {
  std::string name;    ///< with domain: "nvidia.com/gpu"
  std::string rename;  ///< with domain; empty: as `name`
  device_selection devices;
  unsigned int replicas = 0;
  bool operator==(const replicated_resource&) const = default;
};

struct time_slicing {
  bool rename_by_default = false;
  bool fail_requests_greater_than_one = false;
  std::vector<replicated_resource> resources;  ///< with `rename_by_default` applied
  bool operator==(const time_slicing&) const = default;
};

struct imex_channels {
  bool channel_zero = false;  ///< channelIDs: [0]
  bool required = false;
  bool operator==(const imex_channels&) const = default;
};

/// The contents of the NVIDIA device plugin's file; independent of the machine.
struct configuration {
  plugin_flags flags;
  std::vector<naming> gpu_names;
  std::vector<naming> mig_names;
  time_slicing slicing;
  imex_channels imex;
  std::vector<std::string> warnings;  ///< for the log; may have several lines
  bool operator==(const configuration&) const = default;
};

/// An error that makes a file unusable.
struct configuration_problem {
  int line = 0;      ///< from 1; 0: the file as a whole
  int column = 0;    ///< from 1
  std::string text;  ///< "sharing.timeSlicing.resources[0].replicas must be …"
  std::string next_step;
  bool operator==(const configuration_problem&) const = default;
};

struct checked_configuration {
  configuration content;
  std::vector<configuration_problem> problems;  ///< in the order of the file; none: usable
};

/// Reads the NVIDIA device plugin's file, YAML or JSON (`version: v1`). Known keys that this plugin
/// does not use are ignored; unknown keys, which a file for a newer plugin may have, are warnings;
/// duplicate keys are problems. The top-level key `agent` is ignored: another component reads it.
/// `replicas` directly under `sharing.timeSlicing`, a widely published form, is accepted with a
/// warning that contains the correct file. Throws only std::bad_alloc.
[[nodiscard]] checked_configuration check_configuration(std::string_view text,
                                                        const std::string& file);

/// The same, but throws `error` (invalid_argument) for the first problem, with its file, line,
/// column and field and the number of further problems.
[[nodiscard]] configuration parse_configuration(std::string_view text, const std::string& file);

/// A file with the settings `content` in the form that NVIDIA's device plugin accepts.
[[nodiscard]] std::string canonical_time_slicing(const time_slicing& content);

/// Where a setting of NVIDIA's device plugin belongs in its file: "flags" for "migStrategy"; empty
/// if the file has no such setting, or has it at the top level.
[[nodiscard]] std::string place_of_setting(std::string_view key);

/// `whole_resource_name` prepends "nvidia.com/" to a name without a domain.
/// `resource_name_problem` returns why a name is invalid, as the end of a sentence.
[[nodiscard]] std::string whole_resource_name(std::string_view name);
[[nodiscard]] std::optional<std::string> resource_name_problem(std::string_view whole_name);

}  // namespace gpushm::device_plugin
