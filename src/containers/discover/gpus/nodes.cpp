// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/nodes.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/text/text.hpp"
#include "containers/discover/driver_files/root_view.hpp"

namespace gpushm::discover {

namespace {

constexpr mode_t all_users = 0006;
constexpr mode_t permission_bits = 0777;

std::string gpu_text(const gpu_entry& gpu) {
  return fmt::format("GPU {} ({})", gpu.index, gpu.uuid);
}

std::string instance_text(const gpu_entry& gpu, const mig_entry& mig) {
  return fmt::format("MIG instance {}:{} ({})", gpu.index, mig.index, mig.uuid);
}

std::string gpu_node(const gpu_entry& gpu) {
  return std::string("/dev/nvidia").append(std::to_string(gpu.minor));
}

void leave_out(findings& report, const std::string& device, const std::string& why) {
  report.incomplete.push_back(fmt::format("{} is left out: {}", device, why));
}

}  // namespace

mig_minors parse_mig_minors(std::string_view text) {
  mig_minors entry;
  for (const std::string_view line : base::lines_of(text)) {
    const auto words = base::split(line, " \t\r");
    const auto minor = words.size() == 2 ? base::number<int>(words[1]) : std::nullopt;
    if (minor && *minor >= 0) {
      entry.emplace(words[0], *minor);
    }
  }
  return entry;
}

std::optional<unsigned int> major_of(std::string_view majors, std::string_view driver) {
  for (const std::string_view line : base::lines_of(majors)) {
    const auto words = base::split(line, " \t");
    if (words.size() == 2 && words[1] == driver) {
      return base::number<unsigned int>(words[0]);
    }
  }
  return std::nullopt;
}

std::optional<std::string> link_to_node(const cdi::edits& edits,
                                        std::string_view node,
                                        std::string_view link) {
  const std::string path = std::string("/dev/dri/").append(node);
  const bool given = std::any_of(edits.device_nodes.begin(),
                                 edits.device_nodes.end(),
                                 [&](const cdi::device_node& each) { return each.path == path; });
  return given ? std::optional(fmt::format("../{}::{}", node, link)) : std::nullopt;
}

node_finder::node_finder(std::string dev_root, std::string sys_root, mig_minors minors)
    : dev_root_(std::move(dev_root)), sys_root_(std::move(sys_root)), minors_(std::move(minors)) {
  while (!dev_root_.empty() && dev_root_.back() == '/') {
    dev_root_.pop_back();
  }
}

std::string node_finder::outside(const std::string& path) const {
  return std::string(dev_root_).append(path);
}

std::optional<cdi::device_node> node_finder::node(const std::string& path) const {
  const std::string host_path = outside(path);
  struct stat about {};
  if (::stat(host_path.c_str(), &about) != 0 || !S_ISCHR(about.st_mode)) {
    return std::nullopt;
  }
  cdi::device_node entry;
  entry.path = path;
  if (host_path != path) {
    entry.host_path = host_path;
  }
  if ((about.st_mode & all_users) != all_users) {
    entry.file_mode = about.st_mode & permission_bits;
    if (about.st_gid != 0) {
      entry.gid = about.st_gid;
    }
  }
  return entry;
}

void node_finder::add(cdi::edits& edits, const cdi::device_node& node) const {
  edits.device_nodes.push_back(node);
  if (node.gid &&
      std::find(edits.additional_gids.begin(), edits.additional_gids.end(), *node.gid) ==
          edits.additional_gids.end()) {
    edits.additional_gids.push_back(*node.gid);
  }
}

std::optional<cdi::edits> node_finder::all(const std::vector<std::string>& paths,
                                           const std::string& device,
                                           findings& report) const {
  cdi::edits edits;
  for (const std::string& path : paths) {
    const auto entry = node(path);
    if (!entry) {
      leave_out(report, device, std::string("missing device node ").append(outside(path)));
      return std::nullopt;
    }
    add(edits, *entry);
  }
  return edits;
}

std::optional<cdi::edits> node_finder::whole_gpu(const gpu_entry& gpu, findings& report) const {
  const auto main = node(gpu_node(gpu));
  if (!main) {
    leave_out(
        report, gpu_text(gpu), std::string("missing device node ").append(outside(gpu_node(gpu))));
    return std::nullopt;
  }
  cdi::edits edits;
  add(edits, *main);
  const root_view drm(fmt::format("{}/bus/pci/devices/{}/drm", sys_root_, gpu.pci_address));
  for (const std::string& name : drm.names("/")) {
    if (!name.starts_with("card") && !name.starts_with("renderD")) {
      continue;
    }
    if (const auto entry = node(std::string("/dev/dri/").append(name))) {
      add(edits, *entry);
    }
  }
  return edits;
}

std::vector<std::string> node_finder::by_path_links(const gpu_entry& gpu,
                                                    const cdi::edits& edits) const {
  std::vector<std::string> links;
  for (const char* kind : {"card", "render"}) {
    const std::string link = fmt::format("/dev/dri/by-path/pci-{}-{}", gpu.pci_address, kind);
    std::error_code failed;
    const auto target = std::filesystem::read_symlink(outside(link), failed);
    auto text = failed ? std::nullopt : link_to_node(edits, target.filename().string(), link);
    if (text) {
      links.push_back(*std::move(text));
    }
  }
  return links;
}

std::optional<cdi::edits> node_finder::instance(const gpu_entry& gpu,
                                                const mig_entry& mig,
                                                findings& report) const {
  const std::string device = instance_text(gpu, mig);
  const std::string prefix = fmt::format("gpu{}/gi{}", gpu.minor, mig.gpu_instance);
  std::vector<std::string> paths{gpu_node(gpu)};
  for (const std::string& right : {std::string(prefix).append("/access"),
                                   fmt::format("{}/ci{}/access", prefix, mig.compute_instance)}) {
    const auto minor = minors_.find(right);
    if (minor == minors_.end()) {
      leave_out(report, device, std::string("mig-minors has no line for ").append(right));
      return std::nullopt;
    }
    paths.push_back(
        std::string("/dev/nvidia-caps/nvidia-cap").append(std::to_string(minor->second)));
  }
  return all(paths, device, report);
}

cdi::edits node_finder::common(std::string_view majors, findings& report) const {
  cdi::edits edits;
  std::vector<std::string> absent;
  for (const char* path :
       {"/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl"}) {
    if (const auto entry = node(path)) {
      add(edits, *entry);
      continue;
    }
    const std::string_view name = base::name_of(path);
    if (name == "nvidia-uvm" || name == "nvidiactl") {
      report.missing_control_nodes.push_back(outside(path));
      report.incomplete.push_back(
          fmt::format("missing device node {}: CUDA will not start in containers (nvidia-modprobe "
                      "-u -c=0 creates it)",
                      outside(path)));
    } else {
      absent.push_back(outside(path));
    }
  }
  if (!absent.empty()) {
    report.missing.push_back({"device nodes", std::move(absent)});
  }
  struct stat about {};
  const std::string uvm = outside("/dev/nvidia-uvm");
  const auto wanted = major_of(majors, "nvidia-uvm");
  if (wanted && ::stat(uvm.c_str(), &about) == 0 && S_ISCHR(about.st_mode) &&
      gnu_dev_major(about.st_rdev) != *wanted) {
    report.incomplete.push_back(fmt::format(
        "{} has major {}, but the module now has {}: remove it and run nvidia-modprobe -u -c=0",
        uvm,
        gnu_dev_major(about.st_rdev),
        *wanted));
  }
  return edits;
}

}  // namespace gpushm::discover
