// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/resources/gpu_resource.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/files/file.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "gpu/driver/device_text.hpp"
#include "kubernetes/device_plugin/resources/replica_choice.hpp"

namespace gpushm::device_plugin {

namespace {

constexpr const char* list_variable = "NVIDIA_VISIBLE_DEVICES";
constexpr const char* list_directory = "/var/run/nvidia-container-devices";

// Unique per response: a container with two resources has an annotation for each.
std::string random_id() {
  std::array<std::uint8_t, 16> bytes{};
  base::random_bytes(bytes);
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0fU) | 0x40U);  // version 4
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3fU) | 0x80U);
  std::array<char, 16> characters{};
  std::copy(bytes.begin(), bytes.end(), characters.begin());
  return driver::uuid_text({}, characters);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& each : parts) {
    text.append(text.empty() ? "" : ",").append(each);
  }
  return text;
}

}  // namespace

void add_cdi_devices(const gpu_rules& rules,
                     std::vector<std::string> names,
                     allocation& allocation) {
  if (rules.has(device_list_strategy::cdi_annotations)) {
    allocation.annotations[fmt::format(
        "{}gpushm-device-plugin_{}", rules.annotation_prefix, random_id())] = joined(names);
  }
  if (rules.has(device_list_strategy::cdi_cri)) {
    allocation.cdi_devices = std::move(names);
  }
}

gpu_resource::gpu_resource(std::string name,
                           std::vector<unit> units,
                           std::shared_ptr<const gpu_rules> rules,
                           bool one_replica_per_request)
    : counted_resource(std::move(name), std::move(units), one_replica_per_request),
      rules_(std::move(rules)) {
  const auto& own_units = this->units();
  const bool replicated = std::any_of(
      own_units.begin(), own_units.end(), [](const unit& each) { return each.replicas > 0; });
  whole_gpus_ = !replicated && std::none_of(own_units.begin(),
                                            own_units.end(),
                                            [](const unit& each) { return each.is_instance; });
  std::unordered_map<std::string_view, std::size_t> groups;
  for (const unit& each : own_units) {
    // Replicas are grouped by GPU or instance, instances by GPU.
    const auto [at, added] = groups.emplace(replicated ? each.id : each.gpu, groups.size());
    if (added) {
      group_size_.push_back(0);
    }
    group_of_.push_back(at->second);
    group_size_[at->second] += std::max(each.replicas, 1U);
  }
}

void gpu_resource::add_list(const std::vector<const unit*>& selected,
                            allocation& allocation) const {
  std::vector<std::string> names;
  names.reserve(selected.size());
  for (const unit* each : selected) {
    names.push_back(rules_->ids == device_id_strategy::uuid ? each->id : each->index);
  }
  allocation.envs = rules_->envs;
  allocation.envs[list_variable] = joined(names);
  if (rules_->has(device_list_strategy::volume_mounts)) {
    // Makes the runtime read the mounts.
    allocation.envs[list_variable] = list_directory;
    for (const std::string& each : names) {
      allocation.mounts.push_back({fmt::format("{}/{}", list_directory, each), "/dev/null", false});
    }
  }
}

void gpu_resource::add_cdi(const std::vector<const unit*>& selected, allocation& allocation) const {
  std::vector<std::string> names;
  names.reserve(selected.size());
  for (const unit* each : selected) {
    names.push_back(each->cdi_name);
  }
  add_cdi_devices(*rules_, std::move(names), allocation);
}

allocation gpu_resource::response_for(const std::vector<const unit*>& selected) const {
  allocation result;
  if (rules_->uses_lists()) {
    add_list(selected, result);
  }
  if (rules_->uses_cdi()) {
    add_cdi(selected, result);
  }
  // With CDI the document contains the nodes.
  if (rules_->pass_nodes && !rules_->uses_cdi()) {
    result.nodes = rules_->common_nodes;
    for (const unit* each : selected) {
      for (const device_node& node : each->nodes) {
        if (std::find(result.nodes.begin(), result.nodes.end(), node) == result.nodes.end()) {
          result.nodes.push_back(node);
        }
      }
    }
  }
  return result;
}

std::vector<std::size_t> gpu_resource::choose_whole(const std::vector<std::size_t>& candidates,
                                                    const std::vector<std::size_t>& taken,
                                                    std::size_t count) const {
  std::unordered_map<std::size_t, std::size_t> ordinal_at;
  const auto places_of = [&](const std::vector<std::size_t>& ordinals) {
    std::vector<std::size_t> places;
    places.reserve(ordinals.size());
    for (const std::size_t ordinal : ordinals) {
      const std::size_t place = units()[unit_of(ordinal)].gpu_position;
      ordinal_at[place] = ordinal;
      places.push_back(place);
    }
    return places;
  };
  const auto taken_places = places_of(taken);
  auto chosen = choose_gpus(rules_->closeness, places_of(candidates), taken_places, count);
  for (std::size_t& each : chosen) {
    each = ordinal_at[each];
  }
  return chosen;
}

std::vector<std::size_t> gpu_resource::choose(const std::vector<std::size_t>& candidates,
                                              const std::vector<std::size_t>& taken,
                                              std::size_t count) const {
  if (whole_gpus_) {
    return choose_whole(candidates, taken, count);
  }
  std::vector<device_group> groups(group_size_.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].total = group_size_[i];
  }
  for (const std::size_t ordinal : candidates) {
    groups[group_of_[unit_of(ordinal)]].candidates.push_back(ordinal);
  }
  return choose_replicas(groups, rules_->policy, count);
}

share_resource::share_resource(std::string name,
                               std::vector<unit> units,
                               std::shared_ptr<const gpu_rules> rules,
                               std::string on_host)
    : counted_resource(std::move(name), std::move(units), false),
      rules_(std::move(rules)),
      on_host_(std::move(on_host)) {}

allocation share_resource::response_for(const std::vector<const unit*>& selected) const {
  allocation result;
  if (rules_->uses_cdi()) {
    std::vector<std::string> names;
    names.reserve(selected.size());
    for (const unit* each : selected) {
      names.push_back(each->cdi_name);
    }
    add_cdi_devices(*rules_, std::move(names), result);
    return result;
  }
  for (const unit* each : selected) {
    // The CDI name ends with the full domain; the id may be shortened.
    const std::string domain = each->cdi_name.substr(each->cdi_name.find('=') + 1);
    result.mounts.push_back({fmt::format("{}/{}", cdi::domains_inside, domain),
                             fmt::format("{}/{}", on_host_, domain),
                             true});
  }
  return result;
}

std::vector<std::size_t> share_resource::choose(const std::vector<std::size_t>& candidates,
                                                const std::vector<std::size_t>& /*taken*/,
                                                std::size_t count) const {
  return {candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace gpushm::device_plugin
