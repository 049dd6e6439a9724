// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::discover {

/// The links of udev in /dev/dri/by-path, whatever the bus in their names.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class drm_links {
 public:
  /// `dev_root` is the prefix of /dev on the host. Reads /dev/dri/by-path.
  explicit drm_links(const std::string& dev_root);

  /// "TARGET::LINK" for each link to a node of `edits`.
  [[nodiscard]] std::vector<std::string> to_nodes_of(const cdi::edits& edits) const;

 private:
  struct link {
    std::string node;  ///< "card0"
    std::string path;  ///< "/dev/dri/by-path/pci-0000:03:00.0-card"
  };

  std::vector<link> links_;
};

}  // namespace gpushm::discover
