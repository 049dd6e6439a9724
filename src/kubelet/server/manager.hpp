// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/operations.hpp"
#include "kubelet/plugin/resources/resource.hpp"

namespace gpushm::kubelet {

struct manager_options {
  /// Where kubelet.sock is or will be; it need not exist. The kubelet's, whatever its root
  /// directory is.
  std::string directory = "/var/lib/kubelet/device-plugins";
  std::string socket_prefix = "gpushm";
  /// Register lasts until the kubelet has called back, for which it takes up to 10 s.
  std::chrono::milliseconds register_patience{15'000};
  /// For the plugin's own socket to answer.
  std::chrono::milliseconds check_patience{5'000};
  /// For the kubelet to ask for the devices after it registered a plugin.
  std::chrono::milliseconds list_patience{10'000};
  /// Before what failed is tried again: doubled from the first to the longest.
  std::chrono::milliseconds first_retry{100};
  std::chrono::milliseconds longest_retry{30'000};
  /// A registration that lasted this long counts as a success: what failed before is forgotten.
  std::chrono::milliseconds steady_after{60'000};
  /// For calls that run when a service ends.
  std::chrono::milliseconds end_patience{500};
  /// May be null, else it must outlive the manager. Hears of the calls that a kubelet makes, and
  /// of "Register".
  base::operation_observer* observer = nullptr;
};

struct resource_status {
  std::string name;
  std::size_t devices = 0;
  std::size_t healthy = 0;
  bool serving = false;     ///< its socket is there and has answered
  bool registered = false;  ///< the kubelet said yes, and has not left since
  std::string last_error;   ///< why it is not; empty when all is well
  std::uint64_t times_registered = 0;
};

/// Serves each resource to the kubelet and keeps it registered, on a thread of its own. Serves
/// before it registers. Registers again when kubelet.sock is made anew, when the kubelet ends the
/// list of devices, and when the resource's own socket disappears. Whatever fails is tried again,
/// later and later; nothing that a kubelet does ends the manager.
///
/// Shared objects: safe.
class manager {
 public:
  /// Throws `error` (too_many_descriptors, system_error).
  explicit manager(manager_options options);
  manager(const manager&) = delete;
  manager& operator=(const manager&) = delete;
  /// `stop`s.
  ~manager();

  /// What is served from now on; returns at once. One with a name that is served already takes
  /// that one's place: without a pause, and without the kubelet noticing more than the new list of
  /// devices, unless the options that it registered with are others. (A stream that ends makes a
  /// kubelet take all devices for unhealthy, also those of a registration that is newer than the
  /// stream.) Those that are not named any more end: the kubelet gets a last list without devices,
  /// because what it had would stay in the node's capacity, as unhealthy, for five minutes.
  /// Throws `error` (invalid_argument) when two have the same name or one is null. No effect
  /// after `stop`.
  void set_resources(std::vector<std::shared_ptr<plugin::resource>> resources);

  /// As of some milliseconds ago at most, in the order of `set_resources`. Does not block.
  [[nodiscard]] std::vector<resource_status> status() const;

  /// Ends all streams and services and removes their sockets; blocks for `end_patience` and a
  /// little. The kubelet keeps the devices as unhealthy until somebody registers them again.
  void stop();

 private:
  class loop;
  std::unique_ptr<loop> loop_;
};

}  // namespace gpushm::kubelet
