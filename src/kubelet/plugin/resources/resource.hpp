// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpushm::plugin {

/// What a kubelet counts: a GPU, a MIG instance, a replica of either, a place in a domain.
struct device {
  std::string id;  ///< at most 63 characters: "GPU-…", "MIG-…", "GPU-…::3", "default::7"
  bool healthy = true;
  std::optional<std::int64_t> numa_node = {};
  bool operator==(const device&) const = default;
};

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

/// What one container gets.
struct allocation {
  std::map<std::string, std::string> envs;
  std::vector<bind_mount> mounts;
  std::vector<device_node> nodes;
  std::map<std::string, std::string> annotations;
  std::vector<std::string> cdi_devices;  ///< "k8s.device-plugin.gpushm.dev/gpu=GPU-…"
  bool operator==(const allocation&) const = default;
};

/// One extended resource ("nvidia.com/gpu"): its devices and what allocating some of them means.
/// Which devices there are never changes; a new configuration or a new layout of the GPUs makes new
/// resources. Their health does.
///
/// Shared objects: safe.
class resource {
 public:
  resource() = default;
  resource(const resource&) = delete;
  resource& operator=(const resource&) = delete;
  virtual ~resource() = default;

  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
  /// As of now, in a stable order.
  [[nodiscard]] virtual std::vector<device> devices() const = 0;
  /// What each container of a pod gets, in the order of `containers`, which name devices. Decides
  /// nothing and remembers nothing: the kubelet keeps the accounts. Throws `error`
  /// (invalid_argument) for no, unknown, repeated and unhealthy devices and for more replicas than
  /// the configuration allows.
  [[nodiscard]] virtual std::vector<allocation> allocate(
      std::span<const std::vector<std::string>> containers) const = 0;
  /// Of `available`, which `count` go best together, `must_include` among them. Throws `error`
  /// (invalid_argument) when there is no such choice.
  [[nodiscard]] virtual std::vector<std::string> prefer(std::span<const std::string> available,
                                                        std::span<const std::string> must_include,
                                                        std::size_t count) const = 0;
  /// False: the kubelet need not ask `prefer`.
  [[nodiscard]] virtual bool has_preferences() const noexcept = 0;
  /// `changed` is called after each change of `devices()`, from any thread; it must not block or
  /// call back. One listener; an empty function removes it, and is not called once this returns.
  virtual void on_change(std::function<void()> changed) = 0;
};

}  // namespace gpushm::plugin
