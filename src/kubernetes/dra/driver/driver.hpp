// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/report/operations.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "kubernetes/api_client/client.hpp"
#include "kubernetes/dra/claims/cluster.hpp"
#include "kubernetes/dra/claims/domains.hpp"

namespace gpushm::dra {

struct driver_options {
  std::string driver_name = "gpushm.dev";
  std::string node_name;
  std::string kubelet_root =
      "/var/lib/kubelet";  ///< the same path in the container and on the host
  std::string cdi_directory = "/var/run/cdi";
  std::string state_directory = {};  ///< empty: <kubelet root>/plugins/<driver>
  /// Without them, claims with the parameter ipc fail.
  std::optional<cdi::ipc_files> ipc = {};
  unsigned share_devices = 64;                        ///< 1 to 128: each claim needs one
  std::string boot_id = {};                           ///< empty: the kernel's
  std::chrono::milliseconds check_interval{1'000};    ///< for the sockets
  std::chrono::milliseconds health_interval{10'000};  ///< a kubelet forgets health after 30 s
  std::chrono::milliseconds sweep_interval{300'000};  ///< without the API server, but see below
  /// Sweeps that ask the API server for each claim: the first one, and then in this interval. All
  /// nodes of a cluster do; a kubelet's own calls make them rarely necessary.
  std::chrono::milliseconds server_sweep_interval{3'600'000};
  /// Until a driver that is not registered and published asks whether the API server has DRA; a
  /// kubelet with DRA registers it earlier.
  std::chrono::milliseconds api_check_delay{5'000};
  std::chrono::milliseconds api_check_interval{300'000};
};

struct driver_status {
  bool serving = false;     ///< the checkpoint is loaded and the services are available
  bool registered = false;  ///< as last reported by the kubelet
  bool published = false;   ///< the ResourceSlice is up to date
  /// Whether the API server serves a version of resource.k8s.io that the driver supports; nullopt:
  /// not known yet. Without one, no kubelet can use the driver.
  std::optional<bool> api_served = {};
  std::size_t claims = 0;  ///< prepared
  std::string endpoint;    ///< of the DRA service; empty while not serving
  std::string problem;     ///< the current problem; empty: none
  std::string slice_problem;
};

/// The DRA driver: restores the checkpoint, then serves, then registers with the kubelet, then
/// publishes its devices, and maintains all of these. Failures are retried with back-off, logged
/// (base/report/log.hpp) and part of the status; only `stop` ends the driver.
///
/// `stop` keeps the ResourceSlices: the kubelet removes them 30 s after the driver has exited, so a
/// shorter update does not interrupt anything.
///
/// Thread-safety: distinct objects: safe (with the same state directory, one waits until the other
/// has ended); shared objects: safe.
class driver {
 public:
  /// Does not block; the work is done on separate threads. `client`, `opened` and `observer` (may
  /// be null) are not owned. Throws `error` (invalid_argument) for invalid options.
  driver(driver_options options,
         const api_client::client& client,
         domains& opened,
         base::operation_observer* observer = nullptr);
  /// For tests: with another API server.
  driver(driver_options options,
         cluster& through,
         domains& opened,
         base::operation_observer* observer = nullptr);
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;
  /// Calls `stop`.
  ~driver();

  [[nodiscard]] driver_status status() const;
  /// Deregisters, then ends calls in progress; blocks for at most one request to the API server.
  /// Domains, documents and slices stay.
  void stop();

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::dra
