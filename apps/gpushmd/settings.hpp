// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/support/log_format.hpp"
#include "kubernetes/device_plugin/configuration/configuration.hpp"
#include "kubernetes/device_plugin/health/monitor.hpp"

namespace gpushm::agent {

using app::log_format;

/// What the device plugin offers. A running agent applies only these settings when its file
/// changes; settings of parts that are created once (brokers, directories, the health monitor) are
/// not included.
struct device_plugin_settings {
  bool per_gpu_resources = false;
  std::string gpu_resource_name = "nvidia.com/gpu";
  unsigned int per_gpu_replicas = 16;
  unsigned int share_replicas = 64;
  gpushm::device_plugin::replica_policy replicas =
      gpushm::device_plugin::replica_policy::distributed;
  gpushm::device_plugin::configuration
      plugin;  ///< settings of NVIDIA's device plugin in the file, overridden by flags
  bool operator==(const device_plugin_settings&) const = default;
};

/// The agent's settings, described in docs/kubernetes.md, "Settings".
struct settings {
  std::string config_file;
  std::string node_name;  ///< empty: the host's name
  bool broker = true;
  bool device_plugin = true;
  std::optional<bool> dra;  ///< nullopt: on if an API server is configured
  bool gpus = true;
  bool gpus_released = false;  ///< no setting: the agent must not open NVML (node_changes.hpp)
  unsigned int share_devices = 64;
  bool ipc = false;                 ///< resources and claims of unchanged programs
  unsigned int share_grace_s = 10;  ///< until the shares of an unserved domain are unhealthy
  std::vector<std::string> domains{"default"};
  std::string run_dir = "/run/gpushm";
  std::string kubelet_root = "/var/lib/kubelet";
  std::string device_plugin_dir = "/var/lib/kubelet/device-plugins";
  std::string driver_root = "/";
  std::string dev_root;
  std::string proc_root = "/proc";
  std::string cdi_dir = "/var/run/cdi";
  std::string state_dir;    ///< empty: <kubelet_root>/plugins/gpushm.dev
  std::string hook_source;  ///< empty: gpushm-cdi-hook in this program's directory
  std::string ipc_source;   ///< empty: as installed with this program
  std::string kubeconfig;   ///< empty: the pod's service account
  std::string listen = "[::]:9410";
  std::string log_level = "info";
  log_format log_as = log_format::text;
  gpushm::device_plugin::health_options health;
  device_plugin_settings offer;
  std::string settings_text;  ///< content of `config_file`

  [[nodiscard]] std::string state_directory() const;
  /// Whether the device plugin watches the GPUs.
  [[nodiscard]] bool plugin_watches_gpus() const noexcept { return device_plugin && gpus; }
};

/// One setting: its names on the command line, in the environment and under `agent:` in the file.
/// Each name may be empty.
struct setting {
  std::string_view flag;
  std::string_view variable;
  std::string_view key;  ///< "dra.shareDevices"
  std::string_view value_name;
  std::string_view help;
  /// Parses `text` into `into`. Throws `error` (invalid_argument) with only a cause and a next
  /// step.
  void (*take)(settings& into, std::string_view text);
  /// Whether the setting differs. Null: it is in `settings::offer`, which a running agent applies;
  /// all others take effect at the next start.
  bool (*differs)(const settings& left, const settings& right);
};
[[nodiscard]] std::span<const setting> all_settings();

/// The settings whose change from `running` to `fresh` needs a restart, as keys of the file
/// ("agent.listen").
[[nodiscard]] std::vector<std::string> changed_until_restart(const settings& running,
                                                             const settings& fresh);

/// A reason why the settings cannot be used.
struct settings_problem {
  std::string place;  ///< "FILE:LINE:COLUMN", "--flag", "$VARIABLE"
  std::string text;
  std::string next_step;
};

/// The flags' values, in the order of `all_settings()`.
using flag_values = std::vector<std::optional<std::string>>;

struct settings_result {
  settings content;
  std::vector<settings_problem> problems;  ///< none: usable
};

/// Precedence: `flags`, the environment (looked up by `variable`), the file that `--config` or its
/// variable names, the defaults. Throws only std::bad_alloc: a file that cannot be read is a
/// problem.
[[nodiscard]] settings_result gather_settings(const flag_values& flags,
                                              const char* (*variable)(const char* name));

/// The same, but throws `error` (invalid_argument) for the first problem, with the number of the
/// others.
[[nodiscard]] settings gather_usable_settings(const flag_values& flags,
                                              const char* (*variable)(const char* name));

/// Returns the text of a settings file. Does not block: refuses anything but a regular file, such
/// as a FIFO that no process writes to. `problem`: the reason of a failure; empty: none.
[[nodiscard]] std::string read_settings_text(const std::string& file, std::string& problem);

/// Reads the `agent:` section of a file into `out`; other top-level keys belong to NVIDIA's plugin.
void read_agent_section(std::string_view text,
                        const std::string& file,
                        settings& out,
                        std::vector<settings_problem>& problems);

}  // namespace gpushm::agent
