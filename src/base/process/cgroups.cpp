// SPDX-License-Identifier: Apache-2.0
#include "base/process/cgroups.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/files/file.hpp"

namespace gpushm::base {

namespace {

/// Adds `path` (below the mount, with a leading slash; empty: the mount itself) and all its
/// parents.
void add_with_parents(const std::string& mount,
                      std::string path,
                      bool is_version_2,
                      std::vector<cgroup_place>& places) {
  for (;;) {
    places.push_back({mount + path, path.empty() ? "/" : path, is_version_2});
    if (path.empty()) {
      return;
    }
    path.resize(path.rfind('/'));
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    words.push_back(std::move(word));
  }
  return words;
}

bool has_option(std::string_view options, std::string_view option) {
  while (!options.empty()) {
    const std::size_t end = std::min(options.find(','), options.size());
    if (options.substr(0, end) == option) {
      return true;
    }
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return false;
}

/// The path of a cgroup below a mount whose root is `mount_root` in the hierarchy. For a cgroup
/// outside what is mounted, the mount itself is the nearest visible one.
std::string path_below(const std::string& cgroup, const std::string& mount_root) {
  if (cgroup.find("/..") != std::string::npos) {
    return {};
  }
  if (mount_root == "/") {
    return cgroup == "/" ? std::string() : cgroup;
  }
  if (cgroup.starts_with(mount_root) &&
      (cgroup.size() == mount_root.size() || cgroup[mount_root.size()] == '/')) {
    return cgroup.substr(mount_root.size());
  }
  return {};
}

}  // namespace

std::vector<cgroup_place> cgroups_of(const std::string& root, std::string_view controller) {
  const auto memberships = read_small_file(root + "/proc/self/cgroup");
  const auto mounts = read_small_file(root + "/proc/self/mountinfo", 1U << 20U);
  if (!memberships || !mounts) {
    return {};
  }
  std::optional<std::string> in_version_1;
  std::optional<std::string> in_version_2;
  std::istringstream lines(*memberships);
  for (std::string line; std::getline(lines, line);) {  // "4:memory,cpu:/path", "0::/path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (has_option(controllers, controller)) {
      in_version_1 = line.substr(second + 1);
    } else if (controllers.empty()) {
      in_version_2 = line.substr(second + 1);
    }
  }
  std::vector<cgroup_place> places;
  std::istringstream table(*mounts);
  for (std::string line; std::getline(table, line);) {
    // 32 31 0:29 ROOT MOUNTPOINT options [more…] - type source options
    const auto words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) {
      continue;
    }
    const std::string& type = dash[1];
    if (type == "cgroup2" && in_version_2) {
      add_with_parents(root + words[4], path_below(*in_version_2, words[3]), true, places);
    } else if (type == "cgroup" && in_version_1 && has_option(dash[3], controller)) {
      add_with_parents(root + words[4], path_below(*in_version_1, words[3]), false, places);
    }
  }
  return places;
}

}  // namespace gpushm::base
