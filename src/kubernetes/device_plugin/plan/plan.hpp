// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/discover/gpus/generate.hpp"
#include "kubernetes/device_plugin/configuration/configuration.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"
#include "kubernetes/device_plugin/resources/resource.hpp"

namespace gpushm::device_plugin {

/// The CDI kind of a plan's GPUs.
inline constexpr std::string_view gpu_vendor = "k8s.device-plugin.gpushm.dev";
inline constexpr std::string_view gpu_class = "gpu";

/// Prefix of per-GPU resource names, followed by the GPU's index.
inline constexpr std::string_view own_resource_prefix = "gpushm.dev/gpu-";

/// The longest device id that a kubelet accepts.
inline constexpr std::size_t max_id_bytes = 63;

struct plan_options {
  bool gpus = true;  ///< false: only the shares
  std::string gpu_resource_name = "nvidia.com/gpu";
  /// Each whole GPU is a separate resource, "gpushm.dev/gpu-<index>", with `per_gpu_replicas`
  /// devices, so that several pods can request the same GPU. It is then not part of
  /// `gpu_resource_name`: the kubelet cannot detect that both are the same GPU.
  bool per_gpu_resources = false;
  unsigned int per_gpu_replicas = 16;
  /// For each of `domains`; 0: no shares. The first domain is the resource "gpushm.dev/share",
  /// every other "gpushm.dev/share-<domain>".
  unsigned int share_replicas = 64;
  std::vector<std::string> domains{"default"};
  std::string domains_on_host = "/run/gpushm/d";  ///< where the domains' directories are
  /// Each domain is also the resource "gpushm.dev/ipc", or "gpushm.dev/ipc-<domain>", with as many
  /// devices, which in addition preload the library for unchanged programs.
  std::optional<cdi::ipc_files> ipc;
  replica_policy policy = replica_policy::distributed;
  /// Locations of the driver, the nodes and the hook. Vendor, class, names and ids are ignored.
  discover::generate_options places;
};

/// The resources that a node offers.
struct planned {
  std::vector<std::shared_ptr<resource>> resources;  ///< each name once
  cdi::document gpus;                                ///< no devices: not written
  cdi::document shares;                              ///< no devices: not written
  cdi::document ipc;                                 ///< no devices: not written
  std::vector<std::string> notes;                    ///< what is offered, for the log
  std::vector<std::string> warnings;                 ///< what is not offered, and why

  /// Sets the health of all devices on the GPU, whole, MIG-partitioned or replicated, in each
  /// resource; for the UUID of a MIG instance, of that instance alone. Calls listeners on a change.
  /// Returns how many devices changed; 0 for an unknown UUID.
  // NOLINTNEXTLINE(modernize-use-nodiscard): called for its effect
  std::size_t set_health(std::string_view uuid, bool healthy, const std::string& reason) const;
  /// The same for the shares of a domain.
  std::size_t set_share_health(  // NOLINT(modernize-use-nodiscard): called for its effect
      std::string_view domain,
      bool healthy,
      const std::string& reason) const;
};

/// Blocks while it searches for the driver's files. Devices that cannot be offered are left out,
/// with a warning; a resource without devices stays, so that a kubelet shows zero. Throws `error`
/// (invalid_argument) for inconsistent options: invalid names, two resources of one name, devices
/// to be replicated that do not exist, more replicas than fit into `max_list_bytes`.
[[nodiscard]] planned make_plan(const configuration& settings,
                                const plan_options& options,
                                const inventory& inventory);

/// Names of the files that `write_documents` writes.
inline constexpr std::string_view gpu_file_name = "gpushm-device-plugin.json";
inline constexpr std::string_view share_file_name = "gpushm-share.json";
inline constexpr std::string_view ipc_file_name = "gpushm-ipc.json";

/// How to treat documents of an earlier plan that this plan does not contain.
enum class stale_documents { remove, keep };
/// Writes the CDI documents of a plan into `directory`, each by rename. Throws `error`; existing
/// files are then intact.
void write_documents(const planned& plan,
                     const std::string& directory,
                     stale_documents earlier = stale_documents::remove);

}  // namespace gpushm::device_plugin
