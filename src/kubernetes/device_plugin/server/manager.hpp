// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/report/operations.hpp"
#include "kubernetes/device_plugin/resources/resource.hpp"

namespace gpushm::device_plugin {

struct manager_options {
  /// The directory of kubelet.sock, which need not exist yet. The default is the kubelet's, which
  /// does not depend on its root directory.
  std::string directory = "/var/lib/kubelet/device-plugins";
  std::string socket_prefix = "gpushm";
  /// Timeout of Register, which includes the kubelet's call back of up to 10 s.
  std::chrono::milliseconds register_timeout{15'000};
  /// Timeout for the check of the plugin's socket.
  std::chrono::milliseconds check_timeout{5'000};
  /// Timeout for the kubelet to request the devices after registration.
  std::chrono::milliseconds list_timeout{10'000};
  /// Retry interval: doubles from the first to the longest.
  std::chrono::milliseconds first_retry{100};
  std::chrono::milliseconds max_retry{30'000};
  /// A registration that lasted this long resets the retry interval.
  std::chrono::milliseconds steady_after{60'000};
  /// Timeout for calls in progress when a service ends.
  std::chrono::milliseconds end_timeout{500};
  /// May be null, else it must outlive the manager. Notified of the kubelet's calls and of
  /// "Register".
  base::operation_observer* observer = nullptr;
};

struct resource_status {
  std::string name;
  std::size_t devices = 0;
  std::size_t healthy = 0;
  bool serving = false;     ///< its socket exists and was checked
  bool registered = false;  ///< the kubelet accepted it and has not restarted or disconnected since
  std::string last_error;   ///< why it is not registered; empty when it is
  std::uint64_t times_registered = 0;
};

/// Serves each resource to the kubelet and keeps it registered, on a dedicated thread. Serves
/// before it registers. Registers again when kubelet.sock is recreated, when the kubelet ends the
/// device list stream, and when the resource's socket disappears. Failures are retried with
/// back-off; no action of a kubelet ends the manager.
///
/// Thread-safety: shared objects: safe.
class manager {
 public:
  /// Throws `error` (too_many_descriptors, system_error).
  explicit manager(manager_options options);
  manager(const manager&) = delete;
  manager& operator=(const manager&) = delete;
  /// Calls `stop`.
  ~manager();

  /// Sets the served resources. Does not block. A resource with the name of a served one replaces
  /// it without interruption: the kubelet only receives the new device list, unless the registered
  /// options differ. (When a stream ends, a kubelet marks all devices unhealthy, even those of a
  /// registration newer than the stream.) Resources that are no longer listed are removed: the
  /// kubelet receives a last list without devices, because the previous devices would stay in the
  /// node's capacity, as unhealthy, for five minutes. Throws `error` (invalid_argument) when two
  /// have the same name or one is null. No effect after `stop`.
  void set_resources(std::vector<std::shared_ptr<device_plugin::resource>> resources);

  /// At most some milliseconds old, in the order of `set_resources`. Does not block.
  [[nodiscard]] std::vector<resource_status> status() const;

  /// Ends all streams and services and removes their sockets; blocks slightly longer than
  /// `end_timeout`. The kubelet keeps the devices as unhealthy until they are registered again.
  void stop();

 private:
  class loop;
  std::unique_ptr<loop> loop_;
};

}  // namespace gpushm::device_plugin
