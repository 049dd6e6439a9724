// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/agent.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "apps/gpushmd/device_plugin.hpp"
#include "apps/gpushmd/dra_presence.hpp"
#include "apps/gpushmd/gpu_monitor.hpp"
#include "apps/gpushmd/hook_file.hpp"
#include "apps/gpushmd/logging.hpp"
#include "apps/gpushmd/lost_gpu_reports.hpp"
#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "apps/gpushmd/node_changes.hpp"
#include "apps/gpushmd/node_domains.hpp"
#include "apps/gpushmd/node_lock.hpp"
#include "apps/gpushmd/settings_watch.hpp"
#include "apps/gpushmd/signals.hpp"
#include "apps/gpushmd/web_server.hpp"
#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "domains/protocol/private_socket.hpp"
#include "kubernetes/api_client/client.hpp"
#include "kubernetes/dra/driver/driver.hpp"

namespace gpushm::agent {

namespace {

using clock = std::chrono::steady_clock;

/// Interval of the control loop while idle.
constexpr std::chrono::seconds loop_interval{1};
/// /healthz reports a control loop that has not run for this long. Nothing in the loop blocks, so
/// only a restart helps. A driver that does not respond is not a reason to restart; /readyz reports
/// it.
constexpr std::chrono::seconds loop_timeout{15};
/// Limits one report of a lost GPU, and so delays the end of the agent at most this long.
constexpr std::chrono::seconds report_timeout{5};

std::string host_name() {
  std::array<char, 256> name{};
  base::checked("get the host name", {}, "gethostname", [&] {
    return ::gethostname(name.data(), name.size() - 1);
  });
  return name.data();
}

bool is_in_cluster() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code sets environment variables
  return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
}

bool is_dra_enabled(const settings& chosen) {
  return chosen.dra.value_or(chosen.broker && (is_in_cluster() || !chosen.kubeconfig.empty()));
}

dra::driver_options driver_options_of(const settings& chosen) {
  dra::driver_options options;
  options.node_name = chosen.node_name.empty() ? host_name() : chosen.node_name;
  options.kubelet_root = chosen.kubelet_root;
  options.cdi_directory = chosen.cdi_dir;
  options.state_directory = chosen.state_directory();
  options.share_devices = chosen.share_devices;
  options.ipc = install_ipc(chosen);
  return options;
}

/// All parts, in the order of their dependencies.
class agent {
 public:
  explicit agent(const settings& chosen)
      : chosen_(chosen),
        node_lock_(lock_node(chosen.state_directory())),
        metrics_(GPUSHM_VERSION,
                 {chosen.broker ? std::function<metrics::broker_reading()>([this] {
                    return domains_ ? domains_->read_broker() : metrics::broker_reading();
                  })
                                : nullptr,
                  [this] {
                    return plugin_ ? plugin_->readings() : std::vector<metrics::resource_reading>();
                  },
                  [this] { return dra_reading(); }}) {
    if (chosen.broker) {
      node_domains::options options;
      options.run_dir = chosen.run_dir;
      options.domains = chosen.domains;
      options.grace = std::chrono::seconds(chosen.share_grace_s);
      domains_ = std::make_unique<node_domains>(std::move(options));
    }
    device_plugin::loss_listener lost;
    if (chosen.broker) {
      lost_gpus_ = std::make_unique<lost_gpu_reports>(
          [broker = domains::private_socket(chosen.run_dir)](const base::lost_device& device) {
            broker.lose_device(device, report_timeout);
          });
      lost = [this](const base::lost_device& device) { lost_gpus_->add(device); };
      losses_ = watch_for_losses(chosen, lost);
    }
    if (chosen.device_plugin) {
      plugin_ = std::make_unique<device_plugin>(chosen, &metrics_, std::move(lost));
    }
    if (is_dra_enabled(chosen)) {
      start_dra();
    }
    if (!chosen.listen.empty()) {
      web_ = std::make_unique<web_server>(chosen.listen,
                                          web_sources{[this] { return not_alive(); },
                                                      [this] { return not_ready(); },
                                                      [this] { return metrics_.exposition(); }});
      base::log(log_level::info,
                "serving /healthz, /readyz and /metrics on port " + std::to_string(web_->port()));
    }
  }
  agent(const agent&) = delete;
  agent& operator=(const agent&) = delete;
  ~agent() = default;

  /// Called at each run of the control loop.
  void beat() {
    beat_ = clock::now();
    if (domains_ && plugin_) {
      plugin_->set_unserved(domains_->unserved());
    }
    if (dra_ && plugin_) {
      const bool missing =
          dra_presence_.is_missing(plugin_->registered(), dra_->status().registered, clock::now());
      if (missing && !dra_missing_ && dra_->status().api_served.value_or(true)) {
        base::log(log_level::warning,
                  fmt::format("the kubelet registered the device plugin but not the DRA driver: "
                              "claims cannot be used on this node (check that its feature gate "
                              "DynamicResourceAllocation is on and its root directory is {})",
                              chosen_.kubelet_root));
      }
      dra_missing_ = missing;
    }
  }

  /// Applies the settings that can change while the agent runs: what the device plugin offers.
  void reload(const std::function<settings()>& read) {
    settings fresh;
    try {
      fresh = read();
    } catch (const error& why) {
      base::log(log_level::error, std::string(why.what()) + "; keeping the old settings");
      return;
    }
    for (const std::string& warning : fresh.offer.plugin.warnings) {
      base::log(log_level::warning, warning);
    }
    std::string until_restart;
    for (const std::string& key : changed_until_restart(chosen_, fresh)) {
      until_restart.append(until_restart.empty() ? "" : ", ").append(key);
    }
    base::log(log_level::info, "reloaded the settings");
    if (!until_restart.empty()) {
      base::log(
          log_level::warning,
          fmt::format("changes to {} take effect at the next start of the agent", until_restart));
    }
    if (plugin_) {
      plugin_->offer(std::move(fresh.offer));
    }
  }

 private:
  void start_dra() {
    if (!domains_) {
      throw error(errc::invalid_argument,
                  "start the DRA driver",
                  {},
                  "the DRA driver needs the broker, which is off",
                  "use --broker on, or --dra off");
    }
    api_client::client_options options;
    options.user_agent = std::string("gpushmd/") + GPUSHM_VERSION;
    options.observer = &metrics_;
    api_ = std::make_unique<api_client::client>(
        chosen_.kubeconfig.empty() ? api_client::in_cluster_access()
                                   : api_client::kubeconfig_access(chosen_.kubeconfig),
        options);
    dra_ = std::make_unique<dra::driver>(driver_options_of(chosen_), *api_, *domains_, &metrics_);
  }

  [[nodiscard]] std::vector<metrics::dra_reading> dra_reading() const {
    if (!dra_) {
      return {};
    }
    const dra::driver_status now = dra_->status();
    return {{now.claims,
             now.published ? chosen_.share_devices : 0,
             now.registered,
             is_dra_expected(now),
             now.api_served}};
  }

  /// Whether a kubelet must register the driver: not if the API server or the kubelet has no DRA.
  [[nodiscard]] bool is_dra_expected(const dra::driver_status& now) const {
    return now.api_served.value_or(true) && !dra_missing_;
  }

  [[nodiscard]] std::string not_alive() const {
    const auto idle_time =
        std::chrono::duration_cast<std::chrono::seconds>(clock::now() - beat_.load());
    return idle_time < loop_timeout
               ? std::string()
               : fmt::format("the control loop has not run for {} s", idle_time.count());
  }

  [[nodiscard]] std::string not_ready() const {
    if (domains_) {
      if (std::string why = domains_->not_ready(); !why.empty()) {
        return why;
      }
    }
    if (plugin_) {
      if (std::string why = plugin_->not_ready(); !why.empty()) {
        return why;
      }
    }
    const dra::driver_status now = dra_ ? dra_->status() : dra::driver_status();
    if (dra_ && is_dra_expected(now)) {
      if (!now.serving || !now.registered) {
        return "the DRA driver is not registered with the kubelet" +
               (now.problem.empty() ? std::string() : ": " + now.problem);
      }
      if (!now.published) {
        return "the ResourceSlice is not published" +
               (now.slice_problem.empty() ? std::string() : ": " + now.slice_problem);
      }
    }
    return {};
  }

  const settings chosen_;  // as of the start; `plugin_` has the settings that can change
  const base::unique_fd node_lock_;
  std::atomic<clock::time_point> beat_{clock::now()};
  dra_presence dra_presence_;  // used only by the control loop
  std::atomic<bool> dra_missing_{false};
  metrics::agent_metrics metrics_;
  std::unique_ptr<lost_gpu_reports> lost_gpus_;  // destroyed after the next two, which use it
  std::unique_ptr<gpushm::device_plugin::health_monitor> losses_;  // null: `plugin_` watches
  std::unique_ptr<device_plugin>
      plugin_;  // destroyed last of the others: the driver may take seconds
  std::unique_ptr<node_domains> domains_;
  std::unique_ptr<api_client::client> api_;
  std::unique_ptr<dra::driver> dra_;
  std::unique_ptr<web_server> web_;  // destroyed first: it reads from the others
};

}  // namespace

agent_end run_agent(const settings& chosen, const std::function<settings()>& reload) {
  signals inbox;
  for (const std::string& warning : chosen.offer.plugin.warnings) {
    base::log(log_level::warning, warning);
  }
  settings_watch file(chosen.config_file, chosen.settings_text);
  node_changes changes(chosen);
  settings started = chosen;
  started.gpus_released = changes.released();
  agent running(started);
  for (;;) {
    running.beat();
    const auto signal = inbox.next(file.next(loop_interval), file.fd());
    if (signal == signals::kind::stop) {
      base::log(log_level::info, "stopping");
      return agent_end::stopped;
    }
    if (const std::string why = changes.next(); !why.empty()) {
      base::log(log_level::info, why + "; the agent starts again");
      return agent_end::restart;
    }
    if (file.changed() || signal == signals::kind::reload) {
      running.reload(reload);
    }
  }
}

bool anything_abandoned() noexcept {
  return gpushm::device_plugin::health_monitor::any_abandoned();
}

}  // namespace gpushm::agent
