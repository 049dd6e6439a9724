// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kubernetes/device_plugin/configuration/configuration.hpp"
#include "kubernetes/device_plugin/resources/counted_resource.hpp"
#include "kubernetes/device_plugin/resources/gpu_choice.hpp"

namespace gpushm::device_plugin {

/// How GPUs are passed to containers; the same for all resources of a plan.
struct gpu_rules {
  std::set<device_list_strategy> lists;
  device_id_strategy ids = device_id_strategy::uuid;  ///< in variables and mounts
  std::string annotation_prefix = "cdi.k8s.io/";
  bool pass_nodes = false;
  std::vector<device_node> common_nodes;    ///< for each container, with `pass_nodes`
  std::map<std::string, std::string> envs;  ///< in addition to the device list variable
  replica_policy policy = replica_policy::distributed;
  closeness_table closeness;  ///< indexed by `unit::gpu_position`

  [[nodiscard]] bool has(device_list_strategy strategy) const { return lists.count(strategy) > 0; }
  [[nodiscard]] bool uses_cdi() const {
    return has(device_list_strategy::cdi_annotations) || has(device_list_strategy::cdi_cri);
  }
  [[nodiscard]] bool uses_lists() const {
    return has(device_list_strategy::envvar) || has(device_list_strategy::volume_mounts);
  }
};

/// GPUs, MIG instances, and replicas of them.
///
/// Thread-safety: shared objects: safe.
class gpu_resource final : public counted_resource {
 public:
  gpu_resource(std::string name,
               std::vector<unit> units,
               std::shared_ptr<const gpu_rules> rules,
               bool one_replica_per_request);

  [[nodiscard]] bool has_preferences() const noexcept override { return device_count() > 1; }

 protected:
  [[nodiscard]] allocation response_for(const std::vector<const unit*>& selected) const override;
  [[nodiscard]] std::vector<std::size_t> choose(const std::vector<std::size_t>& candidates,
                                                const std::vector<std::size_t>& taken,
                                                std::size_t count) const override;

 private:
  void add_list(const std::vector<const unit*>& selected, allocation& allocation) const;
  void add_cdi(const std::vector<const unit*>& selected, allocation& allocation) const;
  [[nodiscard]] std::vector<std::size_t> choose_whole(const std::vector<std::size_t>& candidates,
                                                      const std::vector<std::size_t>& taken,
                                                      std::size_t count) const;

  std::shared_ptr<const gpu_rules> rules_;
  bool whole_gpus_ = false;              ///< no MIG instances, no replicas
  std::vector<std::size_t> group_of_;    ///< by unit: the group to spread over or pack into
  std::vector<std::size_t> group_size_;  ///< devices
};

/// Slots in a sharing domain: a container that has one can reach the domain's broker.
///
/// Thread-safety: shared objects: safe.
class share_resource final : public counted_resource {
 public:
  /// `on_host` is the host directory that contains the domains' directories.
  share_resource(std::string name,
                 std::vector<unit> units,
                 std::shared_ptr<const gpu_rules> rules,
                 std::string on_host);

  [[nodiscard]] bool has_preferences() const noexcept override { return false; }

 protected:
  [[nodiscard]] allocation response_for(const std::vector<const unit*>& selected) const override;
  [[nodiscard]] std::vector<std::size_t> choose(const std::vector<std::size_t>& candidates,
                                                const std::vector<std::size_t>& taken,
                                                std::size_t count) const override;

 private:
  std::shared_ptr<const gpu_rules> rules_;
  std::string on_host_;
};

/// Adds the CDI devices `names` to `allocation` in the form that `rules` select.
void add_cdi_devices(const gpu_rules& rules,
                     std::vector<std::string> names,
                     allocation& allocation);

}  // namespace gpushm::device_plugin
