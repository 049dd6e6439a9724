// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "apps/gpushm/k8s/manifest.hpp"

namespace gpushm::k8s {

/// The resources of a pod that other pods may share with it.
struct sharing_side {
  const workload* pod = nullptr;
  /// Channels by which this pod and others can reach each other's memory: "domain", "domain NAME",
  /// "claim ns/c", "template ns/t", "path /x", "host IPC".
  std::set<std::string> channels;
  std::set<std::string> written;     ///< the paths in `channels` that it may write
  std::set<std::string> claims;      ///< "claim ns/c": all of the pod's claims
  std::set<std::string> gpu_claims;  ///< those of `claims` that have a GPU
  std::set<std::string> pools;       ///< resources that may be any GPU: "nvidia.com/gpu"
  std::set<std::string> own_gpus;    ///< resources that are one GPU: "nvidia.com/gpu-0"
  std::size_t pool_containers = 0;   ///< containers that request one of `pools`
  manifest_node gpu_place;           ///< where it requests its GPU
  bool needs_gpu = false;
};

/// Whether a container that requests `resource` uses a GPU or a domain.
[[nodiscard]] bool is_sharing_resource(std::string_view resource);
/// "gpushm.dev/gpu-0": a resource of gpushm's device plugin for one GPU.
[[nodiscard]] bool is_per_gpu_resource(std::string_view resource);

/// Whether a `hostPath` volume may carry handles between pods: not a single file or device, nor a
/// system directory.
[[nodiscard]] bool may_carry_handles(const manifest_node& host_path);

/// `one_gpu_resources`: as in `lint_options`.
[[nodiscard]] sharing_side side_of(const workload& pod,
                                   const manifests& manifests,
                                   const std::set<std::string>& one_gpu_resources);

/// Whether the scheduler puts both on one node.
[[nodiscard]] bool same_node(const sharing_side& a, const sharing_side& b);
/// Whether both get the same GPU when they are on one node.
[[nodiscard]] bool same_gpu(const sharing_side& a, const sharing_side& b);

}  // namespace gpushm::k8s
