// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "discover/findings.hpp"
#include "discover/nodes.hpp"

namespace gpushm::discover {

/// The device nodes of AMD's and Intel's GPUs, and their links in /dev/dri/by-path.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class drm_nodes {
 public:
  /// `dev_root` is the prefix of /dev on the host. Reads /dev/dri/by-path.
  explicit drm_nodes(std::string dev_root);

  /// The edits for `paths`. Empty when one is missing; `report.incomplete` then has the reason, in
  /// which `device` is the name.
  [[nodiscard]] std::optional<cdi::edits> complete(const std::vector<std::string>& paths,
                                                   const std::string& device,
                                                   findings& report) const;
  /// "TARGET::LINK" for the links of udev to nodes of `edits`, whatever the bus in their names.
  [[nodiscard]] std::vector<std::string> by_path_links(const cdi::edits& edits) const;

 private:
  struct link {
    std::string node;  ///< "card0"
    std::string path;  ///< "/dev/dri/by-path/pci-0000:03:00.0-card"
  };

  std::string dev_root_;
  node_finder nodes_;
  std::vector<link> links_;
};

}  // namespace gpushm::discover
