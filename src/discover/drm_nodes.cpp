// SPDX-License-Identifier: Apache-2.0
#include "discover/drm_nodes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/text.hpp"
#include "discover/root_view.hpp"

namespace gpushm::discover {

namespace {

// udev makes the names from addresses: "pci-0000:03:00.0-render", "platform-amdgpu_xcp_1-card".
bool is_link_name(std::string_view name) {
  constexpr std::string_view allowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:._-";
  return name.find_first_not_of(allowed) == std::string_view::npos;
}

}  // namespace

drm_nodes::drm_nodes(std::string dev_root)
    : dev_root_(std::move(dev_root)), nodes_(dev_root_, {}, {}) {
  constexpr const char* directory = "/dev/dri/by-path";
  const std::string on_host = join(dev_root_, directory);
  const root_view listed(on_host);
  for (const std::string& name : listed.names("/")) {
    std::error_code failed;
    const auto target = std::filesystem::read_symlink(join(on_host, name), failed);
    if (!failed && is_link_name(name)) {
      links_.push_back({target.filename().string(), join(directory, name)});
    }
  }
}

std::optional<cdi::edits> drm_nodes::complete(const std::vector<std::string>& paths,
                                              const std::string& device,
                                              findings& report) const {
  cdi::edits edits;
  for (const std::string& path : paths) {
    const auto found = nodes_.node(path);
    if (!found) {
      report.incomplete.push_back(
          fmt::format("{} is left out: missing device node {}", device, join(dev_root_, path)));
      return std::nullopt;
    }
    edits.device_nodes.push_back(*found);
    auto& groups = edits.additional_gids;
    if (found->gid && std::find(groups.begin(), groups.end(), *found->gid) == groups.end()) {
      groups.push_back(*found->gid);
    }
  }
  return edits;
}

std::vector<std::string> drm_nodes::by_path_links(const cdi::edits& edits) const {
  std::vector<std::string> links;
  for (const link& each : links_) {
    const bool given = std::any_of(
        edits.device_nodes.begin(), edits.device_nodes.end(), [&](const cdi::device_node& node) {
          return node.path == std::string("/dev/dri/").append(each.node);
        });
    if (given) {
      links.push_back(fmt::format("../{}::{}", each.node, each.path));
    }
  }
  return links;
}

}  // namespace gpushm::discover
