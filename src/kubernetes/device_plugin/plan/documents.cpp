// SPDX-License-Identifier: Apache-2.0
// CDI parts of a plan: device descriptions and files.
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>

#include "base/files/syscall.hpp"
#include "base/text/hex.hpp"
#include "containers/cdi/document/write.hpp"
#include "containers/discover/gpus/generate.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/plan/parts.hpp"

namespace gpushm::device_plugin {

namespace {

constexpr const char* imex_channel = "/dev/nvidia-caps-imex-channels/channel0";

/// The GPUs in the document: with the strategy none a GPU is one device, MIG-partitioned or not.
std::vector<discover::gpu_entry> entries_of(const configuration& settings,
                                            const inventory& inventory) {
  std::vector<discover::gpu_entry> entries;
  for (const gpu_info& each : inventory.gpus) {
    entries.push_back(each.entry);
    if (settings.flags.mig_or_default() == mig_strategy::none) {
      entries.back().mig_enabled = false;
      entries.back().instances.clear();
    }
  }
  return entries;
}

device_node to_node(const cdi::device_node& node) {
  return {node.path, node.host_path.empty() ? node.path : node.host_path, "rw"};
}

/// Only the NVIDIA driver's nodes: display nodes are useless without its libraries.
std::vector<device_node> driver_nodes(const std::vector<cdi::device_node>& device_nodes) {
  std::vector<device_node> nodes;
  for (const cdi::device_node& each : device_nodes) {
    if (each.path.starts_with("/dev/nvidia")) {
      nodes.push_back(to_node(each));
    }
  }
  return nodes;
}

/// Returns false if the channel is required but does not exist.
bool add_imex_channel(const configuration& settings,
                      const plan_options& options,
                      gpu_rules& rules,
                      planned& out) {
  if (!settings.imex.channel_zero) {
    return true;
  }
  const std::string host_path = dev_root_of(options.places) + imex_channel;
  struct stat about {};
  if (::stat(host_path.c_str(), &about) != 0) {
    out.warnings.push_back(
        fmt::format("{}imex.channelIDs names channel 0, which has no device node {}",
                    settings.imex.required ? "no GPU is offered: " : "",
                    host_path));
    return !settings.imex.required;
  }
  rules.envs.emplace("NVIDIA_IMEX_CHANNELS", "0");
  rules.common_nodes.push_back({imex_channel, host_path, "rw"});
  if (!out.gpus.devices.empty()) {
    cdi::device_node node;
    node.path = imex_channel;
    node.host_path = host_path == imex_channel ? "" : host_path;
    out.gpus.changes.device_nodes.push_back(std::move(node));
    out.gpus.version = cdi::minimum_version(out.gpus);
  }
  return true;
}

/// Generates the document of the GPUs; on failure, adds a warning and returns false.
bool generate_document(const configuration& settings,
                       const plan_options& options,
                       const inventory& inventory,
                       bool needed,
                       planned& out) {
  discover::generate_options request = options.places;
  request.vendor = gpu_vendor;
  request.device_class = gpu_class;
  request.strategies = {discover::name_strategy::uuid};
  request.all_device = false;
  request.device_ids.clear();
  try {
    discover::generated result = discover::generate(request, entries_of(settings, inventory));
    out.gpus = std::move(result.content);
    out.warnings.insert(out.warnings.end(), result.incomplete.begin(), result.incomplete.end());
    return true;
  } catch (const error& failure) {
    out.warnings.push_back(fmt::format(
        "{}{}", needed ? "no GPU is offered: " : "nodes are not passed: ", failure.what()));
    return false;
  }
}

}  // namespace

std::string dev_root_of(const discover::generate_options& places) {
  std::string root = discover::find_dev_root(places);
  while (!root.empty() && root.back() == '/') {
    root.pop_back();
  }
  return root;
}

void describe_devices(const configuration& settings,
                      const plan_options& options,
                      const inventory& inventory,
                      gpu_rules& rules,
                      named_units& named,
                      planned& out) {
  if (named.empty()) {
    return;
  }
  const bool by_cdi = rules.uses_cdi();
  const bool described =
      (by_cdi || rules.pass_nodes) && generate_document(settings, options, inventory, by_cdi, out);
  rules.common_nodes = driver_nodes(out.gpus.changes.device_nodes);
  std::map<std::string, const cdi::device*, std::less<>> by_name;
  for (const cdi::device& each : out.gpus.devices) {
    by_name.emplace(each.name, &each);
  }
  const std::string prefix = fmt::format("{}/{}=", gpu_vendor, gpu_class);
  for (auto& [name, units] : named) {
    std::erase_if(units, [&](unit& each) {
      const auto device = by_name.find(each.id);
      if (device == by_name.end()) {
        return by_cdi;
      }
      each.cdi_name = prefix + each.id;
      each.nodes = driver_nodes(device->second->changes.device_nodes);
      return false;
    });
  }
  if (!described) {
    out.gpus = {};
  }
  if (!add_imex_channel(settings, options, rules, out)) {
    for (auto& [name, units] : named) {
      units.clear();
    }
  }
  std::erase_if(named, [](const auto& each) { return each.second.empty(); });
  if (!by_cdi || named.empty()) {
    out.gpus = {};
  }
  add_special_devices(settings, options, out);
}

std::string short_id(std::string_view domain, unsigned int replicas) {
  const std::size_t room = max_id_bytes - fmt::format("::{}", replicas - 1).size();
  if (domain.size() <= room) {
    return std::string(domain);
  }
  const std::string text = "-" + base::fnv1a_text(domain);
  return fmt::format("{}{}", domain.substr(0, room - text.size()), text);
}

void write_documents(const planned& plan, const std::string& directory, stale_documents earlier) {
  for (const auto& [content, name] : {std::pair(&plan.gpus, gpu_file_name),
                                      std::pair(&plan.shares, share_file_name),
                                      std::pair(&plan.ipc, ipc_file_name)}) {
    const std::string path = fmt::format("{}/{}", directory, name);
    if (!content->devices.empty()) {
      cdi::write_file(*content, path, cdi::format::json);
      continue;
    }
    if (earlier == stale_documents::keep) {
      continue;
    }
    base::checked("remove CDI document",
                  path,
                  "unlink",
                  [&path = path] { return ::unlink(path.c_str()); },
                  {ENOENT, ENOTDIR});
  }
}

}  // namespace gpushm::device_plugin
