// SPDX-License-Identifier: Apache-2.0
// GPUDirect Storage, Mellanox's network devices and gdrcopy: `gdsEnabled`, `mofedEnabled` and
// `gdrcopyEnabled` of NVIDIA's device plugin.
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "containers/cdi/document/write.hpp"
#include "containers/discover/driver_files/findings.hpp"
#include "kubernetes/device_plugin/plan/parts.hpp"

namespace gpushm::device_plugin {

namespace {

namespace fs = std::filesystem;

/// Files of one setting, by the container toolkit's modes gds, mofed and gdrcopy.
struct special {
  std::optional<bool> plugin_flags::*enabled;
  std::string_view setting;
  std::array<std::string_view, 2> nodes;  ///< a last '*' matches any text; empty: none
  std::array<std::string_view, 2> mounts;
  std::string_view modules;  ///< arguments of modprobe; the module creates the nodes
};

constexpr auto specials = std::to_array<special>(
    {{&plugin_flags::gds,
      "flags.gdsEnabled",
      {"/dev/nvidia-fs*", ""},
      {"/etc/cufile.json", "/run/udev"},
      "nvidia-fs"},
     {&plugin_flags::mofed,
      "flags.mofedEnabled",
      {"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"},
      {"", ""},
      "-a ib_uverbs rdma_ucm"},
     {&plugin_flags::gdrcopy, "flags.gdrcopyEnabled", {"/dev/gdrdrv", ""}, {"", ""}, "gdrdrv"}});

bool is_character_device(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISCHR(about.st_mode);
}

/// The device nodes below `root` that match a pattern, sorted, without `root`.
std::vector<std::string> matching_nodes(const std::string& root, std::string_view pattern) {
  std::vector<std::string> result;
  if (!pattern.ends_with('*')) {
    if (!pattern.empty() && is_character_device(root + std::string(pattern))) {
      result.emplace_back(pattern);
    }
    return result;
  }
  pattern.remove_suffix(1);
  const std::string directory(pattern.substr(0, pattern.rfind('/')));
  std::error_code failed;
  for (fs::directory_iterator each(root + directory, failed); !failed && each != fs::end(each);
       each.increment(failed)) {
    const std::string path = directory + "/" + each->path().filename().string();
    if (path.starts_with(pattern) && is_character_device(root + path)) {
      result.push_back(path);
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

void add_mounts(const plan_options& options,
                std::span<const std::string_view> mounts,
                cdi::document& document) {
  for (const std::string_view path : mounts) {
    const std::string on_host =
        fs::path(options.places.driver_root + std::string(path)).lexically_normal().string();
    struct stat about {};
    if (!path.empty() && ::stat(on_host.c_str(), &about) == 0) {
      document.changes.mounts.push_back(
          {on_host, std::string(path), discover::read_only_options(), ""});
    }
  }
}

}  // namespace

void add_special_devices(const configuration& settings, const plan_options& options, planned& out) {
  if (out.gpus.devices.empty()) {
    return;
  }
  const std::string root = dev_root_of(options.places);
  for (const special& each : specials) {
    if (!(settings.flags.*each.enabled).value_or(false)) {
      continue;
    }
    std::size_t count = 0;
    for (const std::string_view pattern : each.nodes) {
      for (const std::string& path : matching_nodes(root, pattern)) {
        cdi::device_node node;
        node.path = path;
        node.host_path = root.empty() ? "" : root + path;
        out.gpus.changes.device_nodes.push_back(std::move(node));
        ++count;
      }
    }
    if (count == 0) {
      out.warnings.push_back(
          fmt::format("{} has no effect: this node has no {} (on the node: modprobe {})",
                      each.setting,
                      each.nodes[0],
                      each.modules));
      continue;
    }
    add_mounts(options, each.mounts, out.gpus);
  }
  out.gpus.version = cdi::minimum_version(out.gpus);
}

}  // namespace gpushm::device_plugin
