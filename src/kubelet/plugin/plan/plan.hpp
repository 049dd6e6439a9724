// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"
#include "discover/generate.hpp"
#include "kubelet/plugin/configuration/configuration.hpp"
#include "kubelet/plugin/plan/inventory.hpp"
#include "kubelet/plugin/resources/resource.hpp"

namespace gpushm::plugin {

/// The CDI kind of the GPUs that a plan has.
inline constexpr std::string_view gpu_vendor = "k8s.device-plugin.gpushm.dev";
inline constexpr std::string_view gpu_class = "gpu";

/// In front of a board's index: the name of the resource that is this board alone.
inline constexpr std::string_view own_resource_prefix = "gpushm.dev/gpu-";

/// The longest id of a device that a kubelet takes.
inline constexpr std::size_t most_id_bytes = 63;

struct plan_options {
  bool gpus = true;  ///< false: only the shares
  std::string gpu_resource_name = "nvidia.com/gpu";
  /// Each board in one piece is a resource of its own, "gpushm.dev/gpu-<index>", with
  /// `per_gpu_replicas` devices, so that several pods can ask for the same board. It is then not
  /// among those of `gpu_resource_name`: the kubelet could not know that they are the same board.
  bool per_gpu_resources = false;
  unsigned int per_gpu_replicas = 16;
  /// Of each of `domains`; 0: no shares. The first domain is the resource "gpushm.dev/share", every
  /// other "gpushm.dev/share-<domain>".
  unsigned int share_replicas = 64;
  std::vector<std::string> domains{"default"};
  std::string domains_on_host = "/run/gpushm/d";  ///< where the domains' directories are
  replica_policy policy = replica_policy::distributed;
  /// Where the driver and the nodes are, and the hook. Vendor, class, names and ids do not count.
  discover::generate_options places;
};

/// What a node offers.
struct planned {
  std::vector<std::shared_ptr<resource>> resources;  ///< each name once
  cdi::document gpus;                                ///< no devices: none to be written
  cdi::document shares;                              ///< no devices: none to be written
  std::vector<std::string> notes;                    ///< what is offered, for the log
  std::vector<std::string> warnings;                 ///< what is not, and why

  /// Marks everything that is on the board, whole, cut or replicated, in each resource. An empty
  /// `reason`: it is healthy. Listeners hear of it when it changes something. How many devices
  /// changed. Unknown boards: nothing.
  // NOLINTNEXTLINE(modernize-use-nodiscard): it is done for its effect
  std::size_t set_health(std::string_view board_uuid,
                         bool healthy,
                         const std::string& reason) const;
};

/// Blocks as long as the files of the driver take to be found. Devices that cannot be offered are
/// left out and said so in `warnings`; a resource without devices stays, with none, so that a
/// kubelet shows zero. Throws `error` (invalid_argument) for options that are wrong in themselves:
/// names that are none, two resources of one name, devices to be replicated that are not there.
[[nodiscard]] planned make_plan(const configuration& settings,
                                const plan_options& options,
                                const inventory& found);

/// What `write_documents` calls its files.
inline constexpr std::string_view gpu_file_name = "gpushm-device-plugin.json";
inline constexpr std::string_view share_file_name = "gpushm-share.json";

/// What becomes of the documents of an earlier plan that this one does not have.
enum class others { go, stay };
/// Writes the CDI documents of a plan into `directory`, each by rename. Throws `error`; what was
/// there is then whole.
void write_documents(const planned& plan,
                     const std::string& directory,
                     others earlier = others::go);

}  // namespace gpushm::plugin
