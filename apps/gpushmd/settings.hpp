// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/broker.hpp"
#include "kubelet/plugin/configuration/configuration.hpp"
#include "kubelet/plugin/health/monitor.hpp"

namespace gpushm::agent {

enum class log_format { text, json };

/// What the device plugin offers. This alone is taken over by a running agent when its file
/// changes: whatever has parts that are made once (brokers, directories, the health monitor) is not
/// in here.
struct device_plugin_settings {
  bool per_gpu_resources = false;
  std::string gpu_resource_name = "nvidia.com/gpu";
  unsigned int per_gpu_replicas = 16;
  unsigned int share_replicas = 64;
  plugin::replica_policy replicas = plugin::replica_policy::distributed;
  plugin::configuration plugin;  ///< the usual plugin's part of the file, flags over it
  bool operator==(const device_plugin_settings&) const = default;
};

/// The agent's settings; docs/kubernetes.md, "Settings", says what each means.
struct settings {
  std::string config_file;
  std::string node_name;  ///< empty: the host's name
  bool broker = true;
  bool device_plugin = true;
  std::optional<bool> dra;  ///< nothing: when there is an API server to talk to
  bool gpus = true;
  unsigned int share_devices = 64;
  std::vector<std::string> domains{"default"};
  std::string run_dir = "/run/gpushm";
  std::uint64_t quota_bytes = 0;
  std::uint64_t quota_bytes_per_principal = 0;
  std::uint64_t max_descriptors = 0;      ///< of a domain; 0: as many as the process may open
  std::uint64_t broker_memory_bytes = 0;  ///< of all domains; 0: half of what the process may use
  std::uint32_t max_segments = 4'096;     ///< of a domain
  std::uint32_t max_connections = 1'024;  ///< of a domain
  std::uint32_t fence_delay_ms =
      broker_limits{}.fence_delay_ms;  ///< where there is no proven fence
  std::string kubelet_root = "/var/lib/kubelet";
  std::string device_plugin_dir = "/var/lib/kubelet/device-plugins";
  std::string driver_root = "/";
  std::string dev_root;
  std::string proc_root = "/proc";
  std::string cdi_dir = "/var/run/cdi";
  std::string state_dir;    ///< empty: <kubelet_root>/plugins/gpushm.dev
  std::string hook_source;  ///< empty: gpushm-cdi-hook beside this program
  std::string kubeconfig;   ///< empty: the pod's service account
  std::string listen = "[::]:9410";
  std::string log_level = "info";
  log_format log_as = log_format::text;
  bool accept_fake_chunks = false;
  plugin::health_options health;
  device_plugin_settings offer;
  std::string config_text;  ///< of `config_file`, as it was read

  [[nodiscard]] std::string state_directory() const;
};

/// One setting: how it is called on the command line, in the environment and under `agent:` in the
/// file, each of which may be empty.
struct setting {
  std::string_view flag;
  std::string_view variable;
  std::string_view key;  ///< "dra.shareDevices"
  std::string_view value_name;
  std::string_view help;
  /// Takes the value from its text. Throws `error` (invalid_argument) with the cause alone.
  void (*take)(settings& into, std::string_view text);
  /// Whether the two differ in it. Null: it is in `settings::offer`, which a running agent takes
  /// over; all others count from the next start.
  bool (*differs)(const settings& one, const settings& other);
};
[[nodiscard]] std::span<const setting> all_settings();

/// What a restart is needed for when `fresh` comes after `running`: keys of the file
/// ("agent.listen").
[[nodiscard]] std::vector<std::string> changed_until_restart(const settings& running,
                                                             const settings& fresh);

/// Something that keeps the settings from being used.
struct settings_problem {
  std::string place;  ///< "FILE:LINE:COLUMN", "--flag", "$VARIABLE"
  std::string text;
  std::string next_step;
};

/// What the command line said: values by the setting's index, in the order of `all_settings()`.
using spoken_settings = std::vector<std::optional<std::string>>;

struct settings_result {
  settings content;
  std::vector<settings_problem> problems;  ///< none: usable
};

/// The defaults, under the file that `--config` or its variable names, under the environment, under
/// `spoken`. `variable` looks up the environment. Throws nothing but std::bad_alloc: a file that
/// cannot be read is a problem.
[[nodiscard]] settings_result gather_settings(const spoken_settings& spoken,
                                              const char* (*variable)(const char* name));

/// The same, but throws `error` (invalid_argument) for the first problem and says how many more
/// there are.
[[nodiscard]] settings gather_usable_settings(const spoken_settings& spoken,
                                              const char* (*variable)(const char* name));

/// The text of a settings' file. Does not block: what is not a regular file (a FIFO that no process
/// writes to) is refused. `problem`: what is wrong; empty: nothing.
[[nodiscard]] std::string read_config_text(const std::string& file, std::string& problem);

/// Reads the `agent:` part of a file into `out`; other top-level keys are the usual plugin's.
void read_agent_section(std::string_view text,
                        const std::string& file,
                        settings& out,
                        std::vector<settings_problem>& problems);

}  // namespace gpushm::agent
