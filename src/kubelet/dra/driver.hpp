// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/operations.hpp"
#include "kubelet/dra/cluster.hpp"
#include "kubelet/dra/domains.hpp"
#include "kubelet/rest/client.hpp"

namespace gpushm::dra {

struct driver_options {
  std::string driver_name = "gpushm.dev";
  std::string node_name;
  std::string kubelet_root = "/var/lib/kubelet";  ///< the same here and on the host
  std::string cdi_directory = "/var/run/cdi";
  std::string state_directory = {};                   ///< empty: <kubelet root>/plugins/<driver>
  unsigned share_devices = 64;                        ///< 1 to 128: a claim needs one each
  std::string boot_id = {};                           ///< empty: the kernel's
  std::chrono::milliseconds check_interval{1'000};    ///< of the sockets
  std::chrono::milliseconds health_interval{10'000};  ///< a kubelet forgets health after 30 s
  std::chrono::milliseconds sweep_interval{300'000};
};

struct driver_status {
  bool serving = false;     ///< the checkpoint has been taken, the services answer
  bool registered = false;  ///< the kubelet said so last
  bool published = false;   ///< the ResourceSlice is as it should be
  std::size_t claims = 0;   ///< prepared
  std::string endpoint;     ///< of the DRA service; empty while there is none
  std::string problem;      ///< what stands in the way now; empty: nothing
  std::string slice_problem;
};

/// The DRA driver: restores what the checkpoint says, then serves, then shows itself to the
/// kubelet, then publishes its devices, and keeps all that. What fails is tried again with
/// back-off, logged (base/log.hpp) and part of the status; nothing ends the driver but `stop`.
///
/// ResourceSlices are left at the end: the kubelet removes them 30 s after the driver went, so an
/// update that takes less disturbs nobody.
///
/// Distinct objects: safe, unless they share a state directory; then one waits for the other's end.
/// Shared objects: safe.
class driver {
 public:
  /// Returns at once; the work is done on threads of its own. `client`, `opened` and `observer`
  /// (may be null) are not owned. Throws `error` (invalid_argument) for options that cannot be.
  driver(driver_options options,
         const kube::client& client,
         domains& opened,
         base::operation_observer* observer = nullptr);
  /// For tests: with another API server.
  driver(driver_options options,
         cluster& through,
         domains& opened,
         base::operation_observer* observer = nullptr);
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;
  /// `stop`s.
  ~driver();

  [[nodiscard]] driver_status status() const;
  /// Takes the registration back, then ends calls that run; blocks for at most a request to the API
  /// server. Domains, documents and slices stay.
  void stop();

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::dra
