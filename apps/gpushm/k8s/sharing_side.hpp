// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "apps/gpushm/k8s/manifest.hpp"

namespace gpushm::k8s {

/// What a pod has that others may share with it.
struct sharing_side {
  const workload* pod = nullptr;
  /// By what it can reach memory of others, and they its own: "domain", "claim ns/c",
  /// "template ns/t", "path /x", "host IPC".
  std::set<std::string> channels;
  std::set<std::string> written;     ///< of them the paths that it may write
  std::set<std::string> claims;      ///< "claim ns/c": the pod's claims, any of them
  std::set<std::string> gpu_claims;  ///< of them, those that have a GPU
  std::set<std::string> pools;       ///< resources that may be any GPU: "nvidia.com/gpu"
  std::set<std::string> own_gpus;    ///< resources that are one GPU: "nvidia.com/gpu-0"
  std::size_t pool_containers = 0;   ///< containers that ask for one of `pools`
  manifest_node gpu_place;           ///< where it asks for its GPU
  bool wants_gpu = false;
};

/// Whether a volume of `hostPath` may lead from pod to pod: not a single file or device, nor a
/// directory of the system.
[[nodiscard]] bool may_carry_handles(const manifest_node& host_path);

/// `one_gpu_resources`: as in `lint_options`.
[[nodiscard]] sharing_side side_of(const workload& pod,
                                   const manifests& all,
                                   const std::set<std::string>& one_gpu_resources);

/// Whether the scheduler puts both on one node.
[[nodiscard]] bool same_node(const sharing_side& a, const sharing_side& b);
/// Whether both get one GPU, if they are on one node.
[[nodiscard]] bool same_gpu(const sharing_side& a, const sharing_side& b);

}  // namespace gpushm::k8s
