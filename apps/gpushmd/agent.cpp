// SPDX-License-Identifier: Apache-2.0
#include "agent.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/log.hpp"
#include "base/syscall.hpp"
#include "brokers.hpp"
#include "device_plugin.hpp"
#include "kubelet/dra/driver.hpp"
#include "kubelet/rest/client.hpp"
#include "logging.hpp"
#include "metrics/agent_metrics.hpp"
#include "signals.hpp"
#include "web_server.hpp"

namespace gpushm::agent {

namespace {

// How soon what could not be planned is tried again.
constexpr std::chrono::seconds plan_again{30};
// A domain's descriptors, as a part of what the process may open.
constexpr std::uint64_t domains_a_limit = 4;

std::string host_name() {
  std::array<char, 256> name{};
  base::checked("find the node's name", {}, "gethostname", [&] {
    return ::gethostname(name.data(), name.size() - 1);
  });
  return name.data();
}

std::uint64_t default_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max / domains_a_limit : 0;
}

bool is_in_cluster() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets variables
  return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
}

bool wants_dra(const settings& chosen) {
  return chosen.dra.value_or(chosen.broker && (is_in_cluster() || !chosen.kubeconfig.empty()));
}

broker_set_options brokers_of(const settings& chosen) {
  broker_set_options made;
  made.run_dir = chosen.run_dir;
  made.domains = chosen.domains;
  made.limits.quota_bytes = chosen.quota_bytes;
  made.limits.max_descriptors =
      chosen.max_descriptors != 0 ? chosen.max_descriptors : default_descriptors();
  made.accept_fake_chunks = chosen.accept_fake_chunks;
  return made;
}

dra::driver_options driver_options_of(const settings& chosen) {
  dra::driver_options made;
  made.node_name = chosen.node_name.empty() ? host_name() : chosen.node_name;
  made.kubelet_root = chosen.kubelet_root;
  made.cdi_directory = chosen.cdi_dir;
  made.state_directory = chosen.state_directory();
  made.share_devices = chosen.share_devices;
  return made;
}

/// All parts, in the order in which they need each other.
class agent {
 public:
  agent(const settings& chosen, signals& inbox)
      : chosen_(chosen),
        share_devices_(chosen.share_devices),
        metrics_(GPUSHM_VERSION,
                 {[this] {
                    return brokers_ ? brokers_->readings() : std::vector<metrics::domain_reading>();
                  },
                  [this] {
                    return plugin_ ? plugin_->readings() : std::vector<metrics::resource_reading>();
                  },
                  [this] { return dra_reading(); }}) {
    if (chosen.broker) {
      brokers_ = std::make_unique<broker_set>(brokers_of(chosen));
      base::log(log_level::info, "domains are served in " + brokers_->directory());
    }
    if (chosen.device_plugin) {
      plugin_ = std::make_unique<device_plugin>(
          chosen, [&inbox] { inbox.wake(); }, &metrics_);
    }
    if (wants_dra(chosen)) {
      start_dra();
    }
    if (!chosen.listen.empty()) {
      web_ = std::make_unique<web_server>(
          chosen.listen,
          web_answers{[this] { return not_ready(); }, [this] { return metrics_.exposition(); }});
      base::log(
          log_level::info,
          "/healthz, /readyz and /metrics are answered on port " + std::to_string(web_->port()));
    }
  }
  agent(const agent&) = delete;
  agent& operator=(const agent&) = delete;
  ~agent() = default;

  /// Offers what the settings and the machine say now. False: to be tried again later.
  bool plan() {
    if (!plugin_) {
      return true;
    }
    try {
      plugin_->apply(chosen_);
      planned_ = true;
      return true;
    } catch (const error& why) {
      base::log(log_level::error, why.what());
      return false;
    }
  }

  /// Takes over what can be changed while it runs: the device plugin's part.
  bool reload(const std::function<settings()>& read) {
    settings fresh;
    try {
      fresh = read();
    } catch (const error& why) {
      base::log(log_level::error, std::string(why.what()) + "; the old settings stay");
      return true;
    }
    for (const std::string& warning : fresh.plugin.warnings) {
      base::log(log_level::warning, warning);
    }
    const settings before = std::exchange(chosen_, std::move(fresh));
    if (!plan()) {
      chosen_ = before;
      return false;
    }
    base::log(log_level::info,
              "the device plugin's settings were read again; others count from the next start");
    return true;
  }

 private:
  void start_dra() {
    if (!brokers_) {
      throw error(errc::invalid_argument,
                  "start the DRA driver",
                  {},
                  "it needs the broker, which is off",
                  "say --broker on, or --dra off");
    }
    kube::client_options options;
    options.user_agent = std::string("gpushmd/") + GPUSHM_VERSION;
    options.observer = &metrics_;
    api_ = std::make_unique<kube::client>(chosen_.kubeconfig.empty()
                                              ? kube::in_cluster_access()
                                              : kube::kubeconfig_access(chosen_.kubeconfig),
                                          options);
    dra_ = std::make_unique<dra::driver>(driver_options_of(chosen_), *api_, *brokers_, &metrics_);
  }

  [[nodiscard]] std::vector<metrics::dra_reading> dra_reading() const {
    if (!dra_) {
      return {};
    }
    const dra::driver_status now = dra_->status();
    return {{now.claims, now.published ? share_devices_ : 0, now.registered}};
  }

  [[nodiscard]] std::string not_ready() const {
    if (plugin_) {
      if (!planned_) {
        return "the device plugin has not planned yet";
      }
      if (std::string why = plugin_->not_ready(); !why.empty()) {
        return why;
      }
    }
    if (dra_) {
      const dra::driver_status now = dra_->status();
      if (!now.serving || !now.registered) {
        return "the kubelet does not know the DRA driver" +
               (now.problem.empty() ? std::string() : ": " + now.problem);
      }
      if (!now.published) {
        return "the ResourceSlice is not published" +
               (now.slice_problem.empty() ? std::string() : ": " + now.slice_problem);
      }
    }
    return {};
  }

  settings chosen_;
  const unsigned int share_devices_;  // of the driver's, whatever is read later
  std::atomic<bool> planned_{false};
  metrics::agent_metrics metrics_;
  std::unique_ptr<broker_set> brokers_;
  std::unique_ptr<device_plugin> plugin_;
  std::unique_ptr<kube::client> api_;
  std::unique_ptr<dra::driver> dra_;
  std::unique_ptr<web_server> web_;  // goes first: it asks the others
};

}  // namespace

int run_agent(const settings& chosen, const std::function<settings()>& reload) {
  signals inbox;
  for (const std::string& warning : chosen.plugin.warnings) {
    base::log(log_level::warning, warning);
  }
  agent running(chosen, inbox);
  bool planned = running.plan();
  for (;;) {
    const auto what = inbox.next(planned ? std::chrono::hours(1) : plan_again);
    if (what == signals::kind::stop) {
      base::log(log_level::info, "stopping");
      return EXIT_SUCCESS;
    }
    if (what == signals::kind::reload) {
      planned = running.reload(reload);
    } else if (what == signals::kind::woken || !planned) {
      planned = running.plan();
    }
  }
}

}  // namespace gpushm::agent
