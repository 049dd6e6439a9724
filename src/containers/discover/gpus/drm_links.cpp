// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/drm_links.hpp"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "containers/discover/driver_files/root_view.hpp"
#include "containers/discover/gpus/nodes.hpp"

namespace gpushm::discover {

namespace {

// udev makes the names from addresses: "pci-0000:03:00.0-render", "platform-amdgpu_xcp_1-card".
bool is_link_name(std::string_view name) {
  constexpr std::string_view allowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:._-";
  return name.find_first_not_of(allowed) == std::string_view::npos;
}

}  // namespace

drm_links::drm_links(const std::string& dev_root) {
  constexpr const char* directory = "/dev/dri/by-path";
  const std::string on_host = join(dev_root, directory);
  const root_view listed(on_host);
  for (const std::string& name : listed.names("/")) {
    std::error_code failed;
    const auto target = std::filesystem::read_symlink(join(on_host, name), failed);
    if (!failed && is_link_name(name)) {
      links_.push_back({target.filename().string(), join(directory, name)});
    }
  }
}

std::vector<std::string> drm_links::to_nodes_of(const cdi::edits& edits) const {
  std::vector<std::string> links;
  for (const link& each : links_) {
    if (auto text = link_to_node(edits, each.node, each.path)) {
      links.push_back(*std::move(text));
    }
  }
  return links;
}

}  // namespace gpushm::discover
