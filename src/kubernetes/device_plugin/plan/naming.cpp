// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/plan/naming.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace gpushm::device_plugin {

namespace {

std::string gpu_text(const gpu_info& gpu) {
  return fmt::format("GPU {} ({})", gpu.entry.index, gpu.entry.uuid);
}

unit unit_of_gpu(const gpu_info& gpu, std::size_t index) {
  unit result;
  result.id = gpu.entry.uuid;
  result.index = std::to_string(gpu.entry.index);
  result.gpu = gpu.entry.uuid;
  result.gpu_position = index;
  result.numa_node = gpu.numa_node;
  return result;
}

unit unit_of_instance(const gpu_info& gpu, std::size_t index, const instance& part) {
  unit result = unit_of_gpu(gpu, index);
  result.id = part.entry.uuid;
  result.index = fmt::format("{}:{}", gpu.entry.index, part.entry.index);
  result.is_instance = true;
  return result;
}

std::string name_for(const std::vector<naming>& names,
                     const std::string& text,
                     bool whole,
                     const std::string& otherwise) {
  for (const naming& each : names) {
    if (matches(each.pattern, text, whole)) {
      return each.name;
    }
  }
  return otherwise;
}

/// Why the strategy "single" does not fit these GPUs; empty when it does.
std::string why_not_single(const inventory& inventory) {
  std::set<std::string> profiles;
  std::size_t partitioned = 0;
  for (const gpu_info& each : inventory.gpus) {
    partitioned += each.entry.mig_enabled ? 1 : 0;
    if (each.entry.mig_enabled && each.instances.empty()) {
      return gpu_text(each) + " has MIG enabled but no instances";
    }
    for (const instance& part : each.instances) {
      profiles.insert(part.profile);
    }
  }
  if (partitioned != 0 && partitioned != inventory.gpus.size()) {
    return fmt::format("MIG is enabled for {} of {} GPUs", partitioned, inventory.gpus.size());
  }
  if (profiles.size() > 1) {
    std::string list;
    for (const std::string& each : profiles) {
      list.append(list.empty() ? "" : ", ").append(each);
    }
    return "instances have several profiles: " + list;
  }
  return {};
}

}  // namespace

std::vector<unit>& units_named(named_units& whole, const std::string& name) {
  const auto found = std::find_if(
      whole.begin(), whole.end(), [&](const auto& each) { return each.first == name; });
  return found != whole.end() ? found->second
                              : whole.emplace_back(name, std::vector<unit>{}).second;
}

bool matches(std::string_view pattern, std::string_view text, bool whole) {
  // Each piece between asterisks is searched for after the previous one; with `whole`, the last
  // piece must be at the end.
  std::size_t at = 0;
  bool anchored = whole;
  while (true) {
    const std::size_t star = pattern.find('*');
    const std::string_view piece = pattern.substr(0, star);
    if (star == std::string_view::npos && whole) {
      return anchored ? text.substr(at) == piece
                      : text.size() >= at + piece.size() && text.ends_with(piece);
    }
    const std::size_t entry = text.find(piece, at);
    if (entry == std::string_view::npos || (anchored && entry != at)) {
      return false;
    }
    if (star == std::string_view::npos) {
      return true;
    }
    at = entry + piece.size();
    pattern.remove_prefix(star + 1);
    anchored = false;
  }
}

std::string mig_resource_name(const std::string& profile) {
  std::string name = "mig-" + profile;
  // '+' is not allowed in names of resources.
  std::replace(name.begin(), name.end(), '+', '.');
  return name;
}

named_units name_devices(const configuration& settings,
                         const std::string& gpu_resource_name,
                         const inventory& inventory,
                         std::vector<std::string>& warnings) {
  const mig_strategy strategy = settings.flags.mig_or_default();
  named_units whole;
  if (strategy == mig_strategy::single) {
    if (const std::string why = why_not_single(inventory); !why.empty()) {
      warnings.push_back(
          fmt::format("no GPU is offered: MIG strategy single requires all GPUs to be partitioned "
                      "alike, or none, but {} (set migStrategy to mixed, or partition them alike)",
                      why));
      return whole;
    }
  }
  for (std::size_t index = 0; index < inventory.gpus.size(); ++index) {
    const gpu_info& each = inventory.gpus[index];
    if (!each.entry.mig_enabled || strategy == mig_strategy::none) {
      units_named(whole, name_for(settings.gpu_names, each.name, false, gpu_resource_name))
          .push_back(unit_of_gpu(each, index));
      if (each.entry.mig_enabled) {
        warnings.push_back(
            gpu_text(each) +
            " has MIG enabled and is offered whole because of MIG strategy none: programs cannot "
            "use its instances (set migStrategy to single or mixed)");
      }
      continue;
    }
    if (each.instances.empty()) {
      warnings.push_back(gpu_text(each) + " is not offered: it has MIG enabled but no instances");
    }
    for (const instance& part : each.instances) {
      if (part.profile.empty()) {
        warnings.push_back(fmt::format(
            "{} has an instance that is not offered: NVML does not report the profile of {}",
            gpu_text(each),
            part.entry.uuid));
        continue;
      }
      const std::string otherwise = strategy == mig_strategy::single
                                        ? gpu_resource_name
                                        : whole_resource_name(mig_resource_name(part.profile));
      units_named(whole, name_for(settings.mig_names, part.profile, true, otherwise))
          .push_back(unit_of_instance(each, index, part));
    }
  }
  return whole;
}

namespace {

/// Removes the devices that an entry selects from `left` and returns them.
std::vector<unit> select(const replicated_resource& entry,
                         std::vector<unit>& left,
                         std::vector<std::string>& warnings) {
  const auto take = [&left](auto first, auto last) {
    std::vector<unit> taken(first, last);
    left.erase(first, last);
    return taken;
  };
  if (entry.devices.names.empty()) {
    std::size_t count = left.size();
    if (entry.devices.count > 0) {
      if (entry.devices.count > count) {
        warnings.push_back(
            fmt::format("{} devices of {} are to be replicated, but the number of devices is {}",
                        entry.devices.count,
                        entry.name,
                        count));
      }
      count = std::min<std::size_t>(count, entry.devices.count);
    }
    return take(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count));
  }
  std::vector<unit> taken;
  for (const std::string& name : entry.devices.names) {
    const auto match = std::find_if(left.begin(), left.end(), [&](const unit& each) {
      return each.index == name || each.id == name;
    });
    if (match != left.end()) {
      taken.push_back(std::move(*match));
      left.erase(match);
    } else if (std::none_of(taken.begin(), taken.end(), [&](const unit& each) {
                 return each.index == name || each.id == name;
               })) {
      warnings.push_back(
          fmt::format("device {} of {} is to be replicated but does not exist", name, entry.name));
    }
  }
  return taken;
}

}  // namespace

named_units replicate(const time_slicing& slicing,
                      named_units whole,
                      std::vector<std::string>& warnings) {
  named_units out;
  // Unselected devices keep their order and precede these.
  std::vector<std::pair<std::string, std::vector<unit>>> replicated;
  for (const replicated_resource& entry : slicing.resources) {
    const auto source = std::find_if(
        whole.begin(), whole.end(), [&](const auto& each) { return each.first == entry.name; });
    if (source == whole.end()) {
      continue;
    }
    std::vector<unit> selected = select(entry, source->second, warnings);
    for (unit& each : selected) {
      each.replicas = entry.replicas;
    }
    replicated.emplace_back(entry.rename.empty() ? entry.name : entry.rename, std::move(selected));
  }
  for (auto& [name, units] : whole) {
    if (!units.empty()) {
      units_named(out, name) = std::move(units);
    }
  }
  for (auto& [name, units] : replicated) {
    if (!units.empty()) {
      auto& to = units_named(out, name);
      to.insert(
          to.end(), std::make_move_iterator(units.begin()), std::make_move_iterator(units.end()));
    }
  }
  return out;
}

}  // namespace gpushm::device_plugin
