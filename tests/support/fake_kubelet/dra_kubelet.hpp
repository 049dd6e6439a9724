// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_kubelet/dra_calls.hpp"
#include "tests/support/fake_kubelet/dra_plugin.hpp"

namespace gpushm_testing {

struct dra_kubelet_options {
  std::string root;  ///< "/var/lib/kubelet"; plugins_registry is below it
  /// Deletes the node's ResourceSlices of `driver`, or of all drivers if that is empty. Optional.
  /// Called on the kubelet's thread.
  std::function<void(const std::string& driver)> delete_slices = {};
  /// Services that this kubelet supports, in order of preference.
  std::vector<std::string> services = {"v1.DRAPlugin", "v1beta1.DRAPlugin"};
  std::vector<std::string> health_services = {"v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"};
  /// Time from the loss of a driver's last connected plugin to the deletion of its slices.
  std::chrono::milliseconds wipe_delay{30'000};
  std::chrono::milliseconds health_retry{5'000};  ///< zero: health is not requested
  std::chrono::milliseconds call_timeout{45'000};
  std::chrono::milliseconds scan_interval{20};
  /// If not empty, drivers are refused registration with this text.
  std::string refusal = {};
};

/// A registration attempt and its outcome.
struct dra_registration {
  std::string driver;
  std::string endpoint;
  std::string service;                 ///< the one chosen
  std::vector<std::string> supported;  ///< as listed by the plugin
  std::string error;                   ///< empty: registered
};

/// The part of a kubelet that DRA drivers use. Deletes the node's slices at its start; finds
/// sockets in plugins_registry, calls GetInfo, registers the plugin and notifies it of the outcome;
/// keeps a connection to each plugin; prepares a claim once, however many pods use it; deletes the
/// slices of absent drivers. For a restart, create a new object: it has no record of prepared
/// claims. Thread-safety: shared objects: safe.
class dra_kubelet {
 public:
  explicit dra_kubelet(dra_kubelet_options options);
  dra_kubelet(const dra_kubelet&) = delete;
  dra_kubelet& operator=(const dra_kubelet&) = delete;
  ~dra_kubelet();

  /// Blocks until a plugin of the driver is registered and connected. False after `timeout`.
  [[nodiscard]] bool wait_registered(const std::string& driver, std::chrono::milliseconds timeout);
  /// All attempts, in order.
  [[nodiscard]] std::vector<dra_registration> registrations() const;
  /// The driver's newest connected plugin, else its newest plugin.
  [[nodiscard]] std::shared_ptr<dra_plugin> plugin_of(const std::string& driver) const;
  [[nodiscard]] std::size_t plugins_of(const std::string& driver) const;

  /// For a pod that uses these claims: calls the driver for those that are not prepared yet.
  [[nodiscard]] dra_responses prepare(const std::string& driver,
                                      const std::vector<dra_claim>& claims);
  /// To be called after the last pod has ended.
  [[nodiscard]] dra_responses unprepare(const std::string& driver,
                                        const std::vector<dra_claim>& claims);

 private:
  struct socket_file {
    std::uint64_t inode = 0;
    std::shared_ptr<dra_plugin> plugin;  ///< null while it is not registered
    std::chrono::steady_clock::time_point next_try{};
    std::chrono::milliseconds wait{500};
  };

  void run(const std::stop_token& stop);
  void scan();
  void register_from(const std::string& path, socket_file& file);
  void delete_slices_of_absent_drivers();

  const dra_kubelet_options options_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, socket_file> files_;  ///< by path; used by the kubelet's thread only
  std::vector<std::shared_ptr<dra_plugin>> plugins_;
  std::set<std::string> drivers_;  ///< all that were ever registered
  std::map<std::string, std::chrono::steady_clock::time_point> away_since_;
  std::vector<dra_registration> registrations_;
  std::map<std::string, dra_response> prepared_;  ///< by UID
  std::jthread thread_;                           // last: it uses all the others
};

}  // namespace gpushm_testing
