// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "apps/gpushmd/settings.hpp"
#include "apps/gpushmd/web_server.hpp"
#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

[[noreturn]] void refuse(const std::string& cause, std::string_view next_step = {}) {
  throw error(errc::invalid_argument, {}, {}, cause, next_step);
}

bool parse_bool(std::string_view text) {
  constexpr std::array<std::string_view, 4> yes{"on", "true", "yes", "1"};
  constexpr std::array<std::string_view, 4> no{"off", "false", "no", "0"};
  if (std::find(yes.begin(), yes.end(), text) != yes.end()) {
    return true;
  }
  if (std::find(no.begin(), no.end(), text) == no.end()) {
    refuse(base::in_quotes(text) + " is neither on nor off", "use on or off");
  }
  return false;
}

template <typename Value>
Value number(std::string_view text, Value min, Value max) {
  const auto value = base::number<Value>(text);
  if (!value || *value < min || *value > max) {
    refuse(fmt::format("{} is not a number from {} to {}", base::in_quotes(text), min, max));
  }
  return *value;
}

std::string absolute(std::string_view text) {
  if (!text.starts_with('/')) {
    refuse(base::in_quotes(text) + " is not an absolute path", "use a path that begins with /");
  }
  return std::string(text);
}

/// Off if empty.
std::string web_address(std::string_view text) {
  if (text == "off") {
    return {};
  }
  if (!is_web_address(text)) {
    refuse(base::in_quotes(text) + " is not an IP address with a port",
           "use 0.0.0.0:9410, [::]:9410 or off");
  }
  return std::string(text);
}

std::vector<std::string> domain_names(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view part : base::split(text, ",")) {
    const std::string_view name = base::trim(part);
    const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
    // A device's id consists of the domain, "::" and a number, at most 63 characters.
    if (name.empty() || name.size() > 40 || !std::all_of(name.begin(), name.end(), fits) ||
        std::isalnum(static_cast<unsigned char>(name.front())) == 0 ||
        std::isalnum(static_cast<unsigned char>(name.back())) == 0) {
      refuse(base::in_quotes(name) + " is not a valid domain name",
             "use up to 40 letters, digits, '-' and '_', beginning and ending with a letter or "
             "digit");
    }
    if (name.starts_with("claim-")) {
      refuse(base::in_quotes(name) +
                 " is invalid: names that begin with claim- are reserved for the domains of claims",
             "use another name");
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      refuse(base::in_quotes(name) + " is listed twice", "list each domain once");
    }
    names.emplace_back(name);
  }
  return names;
}

std::string resource_name(std::string_view text) {
  std::string whole = gpushm::device_plugin::whole_resource_name(text);
  if (const auto why = gpushm::device_plugin::resource_name_problem(whole)) {
    refuse(fmt::format("{} is not a resource name: {}", base::in_quotes(text), *why));
  }
  return whole;
}

std::string level_name(std::string_view text) {
  constexpr std::array<std::string_view, 4> levels{"debug", "info", "warning", "error"};
  if (std::find(levels.begin(), levels.end(), text) == levels.end()) {
    refuse(base::in_quotes(text) + " is not a log level", "use debug, info, warning or error");
  }
  return std::string(text);
}

/// For settings that take effect at the next start.
template <auto Member>
constexpr bool differs(const settings& left, const settings& right) {
  return left.*Member != right.*Member;
}
constexpr auto immediately = nullptr;

// Settings of NVIDIA's device plugin are parsed by functions of `plugin`, which name the setting.
constexpr auto table = std::to_array<setting>({
    {"--config",
     "GPUSHMD_CONFIG",
     "",
     "FILE",
     "Configuration file: gpushm's settings and those of NVIDIA's device plugin (YAML or JSON)",
     [](settings& s, std::string_view v) { s.config_file = v; },
     differs<&settings::config_file>},
    {"--node-name",
     "NODE_NAME",
     "nodeName",
     "NAME",
     "Name of this node at the API server [the host name]",
     [](settings& s, std::string_view v) { s.node_name = v; },
     differs<&settings::node_name>},
    {"--broker",
     "GPUSHMD_BROKER",
     "broker.enabled",
     "on|off",
     "Open domains at gpushm-brokerd",
     [](settings& s, std::string_view v) { s.broker = parse_bool(v); },
     differs<&settings::broker>},
    {"--domain",
     "GPUSHMD_DOMAINS",
     "broker.domains",
     "NAME[,NAME…]",
     "Domains that always exist",
     [](settings& s, std::string_view v) { s.domains = domain_names(v); },
     differs<&settings::domains>},
    {"--run-dir",
     "GPUSHMD_RUN_DIR",
     "broker.directory",
     "DIR",
     "Run directory of gpushm-brokerd; the domains are in DIR/d",
     [](settings& s, std::string_view v) { s.run_dir = absolute(v); },
     differs<&settings::run_dir>},
    {"--device-plugin",
     "GPUSHMD_DEVICE_PLUGIN",
     "devicePlugin.enabled",
     "on|off",
     "Advertise resources to the kubelet",
     [](settings& s, std::string_view v) { s.device_plugin = parse_bool(v); },
     differs<&settings::device_plugin>},
    {"--gpus",
     "GPUSHMD_GPUS",
     "devicePlugin.gpus",
     "on|off",
     "Advertise GPUs; off: only gpushm.dev/share",
     [](settings& s, std::string_view v) { s.gpus = parse_bool(v); },
     differs<&settings::gpus>},
    {"--gpu-resource-name",
     "GPUSHMD_GPU_RESOURCE_NAME",
     "devicePlugin.resourceName",
     "NAME",
     "The resource of whole GPUs",
     [](settings& s, std::string_view v) { s.offer.gpu_resource_name = resource_name(v); },
     immediately},
    {"--per-gpu-resources",
     "GPUSHMD_PER_GPU_RESOURCES",
     "devicePlugin.perGpuResources",
     "on|off",
     "Advertise gpushm.dev/gpu-<index> for each GPU, which several pods can request, in place of "
     "whole GPUs",
     [](settings& s, std::string_view v) { s.offer.per_gpu_resources = parse_bool(v); },
     immediately},
    {"--per-gpu-replicas",
     "GPUSHMD_PER_GPU_REPLICAS",
     "devicePlugin.perGpuReplicas",
     "N",
     "Maximum number of pods per gpushm.dev/gpu-<index>",
     [](settings& s, std::string_view v) {
       s.offer.per_gpu_replicas = number<unsigned int>(v, 1, 1'000);
     },
     immediately},
    {"--share-replicas",
     "GPUSHMD_SHARE_REPLICAS",
     "devicePlugin.shareReplicas",
     "N",
     "gpushm.dev/share devices per domain; 0: none",
     [](settings& s, std::string_view v) {
       s.offer.share_replicas = number<unsigned int>(v, 0, 10'000);
     },
     immediately},
    {"--ipc",
     "GPUSHMD_IPC",
     "devicePlugin.ipc",
     "on|off",
     "Advertise gpushm.dev/ipc: as gpushm.dev/share, and CUDA IPC of unchanged programs works",
     [](settings& s, std::string_view v) { s.ipc = parse_bool(v); },
     differs<&settings::ipc>},
    {"--share-grace",
     "GPUSHMD_SHARE_GRACE",
     "devicePlugin.shareGrace",
     "SECONDS",
     "How long a domain can be unserved before its shares are unhealthy; longer than a takeover",
     [](settings& s, std::string_view v) { s.share_grace_s = number<unsigned int>(v, 1, 3'600); },
     differs<&settings::share_grace_s>},
    {"--replica-policy",
     "GPUSHMD_REPLICA_POLICY",
     "devicePlugin.replicaPolicy",
     "distributed|packed",
     "Choice of a container's replicas: on the least used GPUs, or on the most used",
     [](settings& s, std::string_view v) {
       s.offer.replicas = gpushm::device_plugin::parse_replica_policy(v, {});
     },
     immediately},
    {"--device-plugin-dir",
     "GPUSHMD_DEVICE_PLUGIN_DIR",
     "devicePlugin.directory",
     "DIR",
     "Directory of kubelet.sock",
     [](settings& s, std::string_view v) { s.device_plugin_dir = absolute(v); },
     differs<&settings::device_plugin_dir>},
    {"--application-xids",
     "GPUSHMD_APPLICATION_XIDS",
     "devicePlugin.applicationXids",
     "[-]N[,…]",
     "Xids that leave a GPU healthy, in addition to 13, 31, 43, 45, 68 and 109; -N removes one; "
     "all: every Xid",
     [](settings& s, std::string_view v) {
       gpushm::device_plugin::change_application_xids(s.health, v, {});
     },
     differs<&settings::health>},
    {"--dra",
     "GPUSHMD_DRA",
     "dra.enabled",
     "on|off",
     "Serve gpushm.dev claims [on if an API server is configured]",
     [](settings& s, std::string_view v) { s.dra = parse_bool(v); },
     differs<&settings::dra>},
    {"--share-devices",
     "GPUSHMD_SHARE_DEVICES",
     "dra.shareDevices",
     "N",
     "Upper bound of claims with a domain at the same time",
     [](settings& s, std::string_view v) { s.share_devices = number<unsigned int>(v, 1, 128); },
     differs<&settings::share_devices>},
    {"--kubelet-root",
     "GPUSHMD_KUBELET_ROOT",
     "kubeletRoot",
     "DIR",
     "The kubelet's root directory; the same path in the container and on the host",
     [](settings& s, std::string_view v) { s.kubelet_root = absolute(v); },
     differs<&settings::kubelet_root>},
    {"--driver-root",
     "GPUSHMD_DRIVER_ROOT",
     "driverRoot",
     "DIR",
     "Where the driver is installed",
     [](settings& s, std::string_view v) { s.driver_root = absolute(v); },
     differs<&settings::driver_root>},
    {"--dev-root",
     "GPUSHMD_DEV_ROOT",
     "devRoot",
     "DIR",
     "Prefix of /dev",
     [](settings& s, std::string_view v) { s.dev_root = absolute(v); },
     differs<&settings::dev_root>},
    {"--proc-root",
     "GPUSHMD_PROC_ROOT",
     "procRoot",
     "DIR",
     "Where procfs is mounted",
     [](settings& s, std::string_view v) { s.proc_root = absolute(v); },
     differs<&settings::proc_root>},
    {"--cdi-dir",
     "GPUSHMD_CDI_DIR",
     "cdiDirectory",
     "DIR",
     "Directory for CDI documents",
     [](settings& s, std::string_view v) { s.cdi_dir = absolute(v); },
     differs<&settings::cdi_dir>},
    {"--state-dir",
     "GPUSHMD_STATE_DIR",
     "stateDirectory",
     "DIR",
     "Directory for the state that survives a restart and for the hook program [<kubelet "
     "root>/plugins/gpushm.dev]",
     [](settings& s, std::string_view v) { s.state_dir = absolute(v); },
     differs<&settings::state_dir>},
    {"--hook-source",
     "GPUSHMD_HOOK_SOURCE",
     "hookSource",
     "FILE",
     "The hook program to install on the host [gpushm-cdi-hook in this program's directory]",
     [](settings& s, std::string_view v) { s.hook_source = absolute(v); },
     differs<&settings::hook_source>},
    {"--ipc-source",
     "GPUSHMD_IPC_SOURCE",
     "ipcSource",
     "DIR",
     "Directory of libgpushm-ipc.so and libgpushm.so.1 to install on the host [../lib/gpushm/ipc "
     "from this program's directory]",
     [](settings& s, std::string_view v) { s.ipc_source = absolute(v); },
     differs<&settings::ipc_source>},
    {"--kubeconfig",
     "KUBECONFIG",
     "kubeconfig",
     "FILE",
     "Kubeconfig for access from outside the cluster [the pod's service account]",
     [](settings& s, std::string_view v) { s.kubeconfig = v; },
     differs<&settings::kubeconfig>},
    {"--listen",
     "GPUSHMD_LISTEN",
     "listen",
     "ADDRESS:PORT",
     "Address of /healthz, /readyz and /metrics; off: no HTTP",
     [](settings& s, std::string_view v) { s.listen = web_address(v); },
     differs<&settings::listen>},
    {"--log-level",
     "GPUSHMD_LOG_LEVEL",
     "log.level",
     "LEVEL",
     "debug, info, warning or error",
     [](settings& s, std::string_view v) { s.log_level = level_name(v); },
     differs<&settings::log_level>},
    {"--log-format",
     "GPUSHMD_LOG_FORMAT",
     "log.format",
     "text|json",
     "Format of the log on standard error",
     [](settings& s, std::string_view v) {
       if (v != "text" && v != "json") {
         refuse(base::in_quotes(v) + " is neither text nor json", "use text or json");
       }
       s.log_as = v == "json" ? log_format::json : log_format::text;
     },
     differs<&settings::log_as>},
    // Settings of NVIDIA's device plugin, under its names; in its file they are under `flags`.
    {"--mig-strategy",
     "MIG_STRATEGY",
     "",
     "none|single|mixed",
     "How MIG instances are advertised",
     [](settings& s, std::string_view v) {
       s.offer.plugin.flags.mig = gpushm::device_plugin::parse_mig_strategy(v, {});
     },
     immediately},
    {"--device-list-strategy",
     "DEVICE_LIST_STRATEGY",
     "",
     "STRATEGY[,…]",
     "cdi-cri, cdi-annotations, envvar or volume-mounts",
     [](settings& s, std::string_view v) {
       s.offer.plugin.flags.device_list =
           gpushm::device_plugin::parse_device_list_strategies(v, {});
     },
     immediately},
    {"--device-id-strategy",
     "DEVICE_ID_STRATEGY",
     "",
     "uuid|index",
     "How devices are identified to a runtime",
     [](settings& s, std::string_view v) {
       s.offer.plugin.flags.device_id = gpushm::device_plugin::parse_device_id_strategy(v, {});
     },
     immediately},
    {"--pass-device-specs",
     "PASS_DEVICE_SPECS",
     "",
     "on|off",
     "Also pass device nodes",
     [](settings& s, std::string_view v) {
       s.offer.plugin.flags.pass_device_specs = parse_bool(v);
     },
     immediately},
    {"--fail-on-init-error",
     "FAIL_ON_INIT_ERROR",
     "",
     "on|off",
     "Accepted and ignored: without a GPU, zero are advertised",
     [](settings& s, std::string_view v) {
       s.offer.plugin.flags.fail_on_init_error = parse_bool(v);
     },
     immediately},
    {"--cdi-annotation-prefix",
     "CDI_ANNOTATION_PREFIX",
     "",
     "PREFIX",
     "Prefix of annotations that name CDI devices",
     [](settings& s, std::string_view v) { s.offer.plugin.flags.cdi_annotation_prefix = v; },
     immediately},
    {"--gds-enabled",
     "GDS_ENABLED",
     "",
     "on|off",
     "Add GPUDirect Storage's devices to containers with a GPU",
     [](settings& s, std::string_view v) { s.offer.plugin.flags.gds = parse_bool(v); },
     immediately},
    {"--mofed-enabled",
     "MOFED_ENABLED",
     "",
     "on|off",
     "Add Mellanox's network devices to containers with a GPU",
     [](settings& s, std::string_view v) { s.offer.plugin.flags.mofed = parse_bool(v); },
     immediately},
    {"--gdrcopy-enabled",
     "GDRCOPY_ENABLED",
     "",
     "on|off",
     "Add gdrcopy's device to containers with a GPU",
     [](settings& s, std::string_view v) { s.offer.plugin.flags.gdrcopy = parse_bool(v); },
     immediately},
});

}  // namespace

std::span<const setting> all_settings() {
  return table;
}

std::vector<std::string> changed_until_restart(const settings& running, const settings& fresh) {
  std::vector<std::string> changed;
  for (const setting& each : table) {
    if (each.differs != nullptr && each.differs(running, fresh)) {
      changed.push_back(each.key.empty() ? std::string(each.flag)
                                         : fmt::format("agent.{}", each.key));
    }
  }
  return changed;
}

}  // namespace gpushm::agent
