// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "containers/cdi/document/write.hpp"
#include "containers/discover/driver_files/hooks.hpp"
#include "containers/discover/gpus/drm_gpus.hpp"
#include "containers/discover/gpus/drm_links.hpp"
#include "containers/discover/gpus/nodes.hpp"
#include "gpushm/error.hpp"

namespace gpushm::discover {

namespace {

const char* maker_of(gpu_vendor source) {
  return source == gpu_vendor::amd ? "AMD" : "Intel";
}

const char* next_step(gpu_vendor source) {
  return source == gpu_vendor::amd
             ? "check that rocminfo works on this machine (modprobe amdgpu; the kernel needs "
               "CONFIG_HSA_AMD), and that --dev-root and --sys-root are right"
             : "check that /dev/dri has its nodes (modprobe xe or i915), and that --dev-root and "
               "--sys-root are right";
}

std::string text_of(const drm_gpu& gpu) {
  return fmt::format("GPU {} ({})", gpu.index, gpu.address);
}

std::string name_of(name_strategy strategy, const drm_gpu& gpu) {
  if (strategy == name_strategy::uuid) {
    return gpu.unique_name;
  }
  return fmt::format("{}{}", strategy == name_strategy::type_index ? "gpu" : "", gpu.index);
}

bool is_named(const drm_gpu& gpu, const std::string& id) {
  return !id.empty() && (id == std::to_string(gpu.index) || id == gpu.unique_name);
}

/// The chosen GPUs. An ID names one of them, or the PCI address of one or of all its partitions.
std::vector<drm_gpu> select_gpus(const std::vector<drm_gpu>& merged,
                                 const std::vector<std::string>& ids) {
  if (ids.empty()) {
    return merged;
  }
  for (const std::string& id : ids) {
    if (std::any_of(merged.begin(), merged.end(), [&](const drm_gpu& gpu) {
          return is_named(gpu, id) || id == gpu.address;
        })) {
      continue;
    }
    std::string there;
    for (const drm_gpu& gpu : merged) {
      there += fmt::format("{}{} = {}",
                           there.empty() ? "" : ", ",
                           gpu.index,
                           gpu.unique_name.empty() ? gpu.address : gpu.unique_name);
    }
    throw error(errc::device_not_found,
                "find device",
                id,
                "no such device; available: " + there,
                "use the index, the unique name or the PCI address of a GPU");
  }
  std::vector<drm_gpu> chosen;
  std::copy_if(merged.begin(), merged.end(), std::back_inserter(chosen), [&](const drm_gpu& gpu) {
    return std::any_of(ids.begin(), ids.end(), [&](const std::string& id) {
      return is_named(gpu, id) || id == gpu.address;
    });
  });
  return chosen;
}

/// Adds the nodes and groups, without the hooks.
void merge(cdi::edits& merged, const cdi::edits& edits) {
  const auto add = [](auto& target, const auto& added) {
    for (const auto& each : added) {
      if (std::find(target.begin(), target.end(), each) == target.end()) {
        target.push_back(each);
      }
    }
  };
  add(merged.device_nodes, edits.device_nodes);
  add(merged.additional_gids, edits.additional_gids);
}

[[noreturn]] void throw_none(gpu_vendor source, const root_view& sys, const findings& report) {
  std::string cause;
  if (!report.incomplete.empty()) {
    cause = report.incomplete.front();
  } else if (!report.missing.empty()) {
    const missing_items& first = report.missing.front();
    constexpr std::size_t few = 3;
    cause = fmt::format("not found: {} {}", first.kind, list_text(first.names, few));
  } else {
    cause = fmt::format("{} lists no GPU of {}", sys.text(), maker_of(source));
  }
  throw error(errc::device_not_found, "describe the GPUs", {}, cause, next_step(source));
}

}  // namespace

generated generate_drm(const generate_options& options) {
  const root_view sys(options.sys_root);
  drm_gpus gpus = options.source == gpu_vendor::amd ? find_amd_gpus(sys) : find_intel_gpus(sys);
  if (gpus.gpus.empty()) {
    throw_none(options.source, sys, gpus.report);
  }
  const std::string dev_root = find_dev_root(options);
  const node_finder nodes(dev_root, {}, {});
  const drm_links links_of_udev(dev_root);
  const hook_maker hooks(options.hook_path, options.disabled_hooks);
  generated result;
  cdi::edits merged;
  std::vector<std::string> links;
  for (const drm_gpu& gpu : select_gpus(gpus.gpus, options.device_ids)) {
    auto edits = nodes.all(gpu.nodes, text_of(gpu), gpus.report);
    if (!edits) {
      continue;
    }
    const auto own_links = links_of_udev.to_nodes_of(*edits);
    hooks.add_each(*edits, "create-symlinks", "--link", own_links);
    const std::size_t before = result.content.devices.size();
    for (const name_strategy strategy : options.strategies) {
      if (std::string name = name_of(strategy, gpu); !name.empty()) {
        result.content.devices.push_back({std::move(name), {}, *edits});
      }
    }
    if (result.content.devices.size() == before) {
      gpus.report.incomplete.push_back(
          fmt::format("{} is left out: it has no unique ID, and its index is not requested "
                      "(--device-name-strategy index)",
                      text_of(gpu)));
      continue;
    }
    merge(merged, *edits);
    links.insert(links.end(), own_links.begin(), own_links.end());
  }
  if (result.content.devices.empty()) {
    throw_none(options.source, sys, gpus.report);
  }
  if (options.all_device) {
    // One hook: each is a process at each container's start.
    hooks.add_each(merged, "create-symlinks", "--link", links);
    result.content.devices.push_back({"all", {}, merged});
  }
  result.found.push_back(std::move(gpus.summary));
  result.missing = std::move(gpus.report.missing);
  result.incomplete = std::move(gpus.report.incomplete);
  result.content.kind = fmt::format("{}/{}", options.vendor, options.device_class);
  result.content.version = cdi::minimum_version(result.content);
  return result;
}

}  // namespace gpushm::discover
