// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpushm::device_plugin {

/// A device of the kubelet: a GPU, a MIG instance, a replica of either, or a slot in a domain.
struct device {
  std::string id;  ///< at most 63 characters: "GPU-…", "MIG-…", "GPU-…::3", "default::7"
  bool healthy = true;
  std::optional<std::int64_t> numa_node = {};
  bool operator==(const device&) const = default;
};

/// The largest list of a resource's devices that a kubelet reads: gRPC's default for a message.
inline constexpr std::size_t max_list_bytes = 4UL << 20U;

/// An upper bound of the size of the message with these devices.
[[nodiscard]] inline std::size_t list_bytes(const std::vector<device>& devices) {
  // Tags and lengths of the device and its id, "Unhealthy", and the topology with the longest
  // number of a NUMA node.
  constexpr std::size_t fixed = 3 + 2 + 11 + 15;
  std::size_t bytes = 0;
  for (const device& each : devices) {
    bytes += fixed + each.id.size();
  }
  return bytes;
}

struct bind_mount {
  std::string container_path;
  std::string host_path;
  bool read_only = true;
  bool operator==(const bind_mount&) const = default;
};

struct device_node {
  std::string container_path;
  std::string host_path;
  std::string permissions = "rw";
  bool operator==(const device_node&) const = default;
};

/// The device plugin's response for one container.
struct allocation {
  std::map<std::string, std::string> envs;
  std::vector<bind_mount> mounts;
  std::vector<device_node> nodes;
  std::map<std::string, std::string> annotations;
  std::vector<std::string> cdi_devices;  ///< "k8s.device-plugin.gpushm.dev/gpu=GPU-…"
  bool operator==(const allocation&) const = default;
};

/// One extended resource ("nvidia.com/gpu"): its devices and how they are allocated. The set of
/// devices never changes, only their health; a new configuration or GPU layout creates new
/// resources.
///
/// Thread-safety: shared objects: safe.
class resource {
 public:
  resource() = default;
  resource(const resource&) = delete;
  resource& operator=(const resource&) = delete;
  virtual ~resource() = default;

  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
  /// As of now, in a stable order.
  [[nodiscard]] virtual std::vector<device> devices() const = 0;
  /// Returns the response for each container of a pod, in the order of `containers`, which list
  /// device ids. Keeps no state: the kubelet does the accounting. Throws `error` (invalid_argument)
  /// for missing, unknown, repeated and unhealthy devices and for more replicas than the
  /// configuration allows.
  [[nodiscard]] virtual std::vector<allocation> allocate(
      std::span<const std::vector<std::string>> containers) const = 0;
  /// Returns the best `count` of `available`, which include `must_include`. Throws `error`
  /// (invalid_argument) when no such choice exists.
  [[nodiscard]] virtual std::vector<std::string> prefer(std::span<const std::string> available,
                                                        std::span<const std::string> must_include,
                                                        std::size_t count) const = 0;
  /// False if the kubelet need not call `prefer`.
  [[nodiscard]] virtual bool has_preferences() const noexcept = 0;
  /// Sets the only listener, called after each change of `devices()`, from any thread; it must not
  /// block or call back. An empty function removes it; it is not called once this returns.
  virtual void on_change(std::function<void()> changed) = 0;
};

}  // namespace gpushm::device_plugin
