// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

/// A cgroup of this process, or a parent of one, as far as its hierarchy is mounted here.
struct cgroup_place {
  std::string directory;  ///< of its files, with the root prefix
  std::string shown;      ///< its path below the mount, "/" for the mount itself
  bool is_version_2 = false;
};

/// The cgroups of the version 1 hierarchy with this controller ("memory", "cpu") and of version 2,
/// innermost first. `root` is prefixed to /proc and the mounts: empty, or a tree for tests. Empty
/// if nothing can be read. Throws std::bad_alloc.
[[nodiscard]] std::vector<cgroup_place> cgroups_of(const std::string& root,
                                                   std::string_view controller);

}  // namespace gpushm::base
