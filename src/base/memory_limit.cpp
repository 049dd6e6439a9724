// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/file.hpp"

namespace gpushm::base {

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
/// Version 1 writes "no limit" as the largest number of whole pages.
constexpr std::uint64_t least_unlimited = std::uint64_t{1} << 60U;

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) {
    return std::nullopt;
  }
  return value;
}

/// The number in a file; "max" and version 1's way of saying so are `unlimited`.
std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_small_file(path);
  if (!text) {
    return std::nullopt;
  }
  if (text->starts_with("max")) {
    return unlimited;
  }
  const auto value = number_in(*text);
  return value && *value >= least_unlimited ? unlimited : value;
}

/// The number after `key` and blanks in lines of "key value"; 0 when there is none.
std::uint64_t value_of(std::string_view text, std::string_view key) {
  for (auto at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const std::string_view rest = text.substr(at + key.size());
    if ((at == 0 || text[at - 1] == '\n') && rest.starts_with(' ')) {
      const auto digits = std::min(rest.find_first_not_of(' '), rest.size());
      return number_in(rest.substr(digits)).value_or(0);
    }
  }
  return 0;
}

std::uint64_t less(std::uint64_t from, std::uint64_t taken) {
  return from == unlimited ? unlimited : from - std::min(from, taken);
}
std::uint64_t plus(std::uint64_t one, std::uint64_t other) {
  return one > unlimited - other ? unlimited : one + other;
}

// ---- the machine ----

struct machine_memory {
  std::uint64_t total = 0;  // 0: not known
  std::uint64_t available = 0;
  std::uint64_t free_swap = 0;
};

machine_memory memory_of_machine(const std::string& root) {
  machine_memory result;
  if (const auto text = read_small_file(root + "/proc/meminfo")) {
    constexpr std::uint64_t kibibyte = 1024;
    result.total = value_of(*text, "MemTotal:") * kibibyte;
    result.available = value_of(*text, "MemAvailable:") * kibibyte;
    result.free_swap = value_of(*text, "SwapFree:") * kibibyte;
  }
  return result;
}

// ---- cgroups ----

/// What the two versions call things.
struct file_names {
  std::string_view limit;
  std::string_view usage;
  std::string_view inactive;
  std::string_view active;
};
constexpr file_names version_1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr file_names version_2{"memory.max", "memory.current", "inactive_file", "active_file"};

/// A memory cgroup of this process, seen from where its hierarchy is mounted.
struct cgroup_place {
  std::string mount;  ///< with the root prefix
  std::string path;   ///< below the mount, with a slash at the front; empty: the mount itself
  bool is_version_2 = false;
};

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    words.push_back(std::move(word));
  }
  return words;
}

bool has_option(std::string_view options, std::string_view wanted) {
  while (!options.empty()) {
    const std::size_t end = std::min(options.find(','), options.size());
    if (options.substr(0, end) == wanted) {
      return true;
    }
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return false;
}

/// Where a cgroup lies below a mount that shows the hierarchy from `mount_root` on. Of one outside
/// what is mounted the mount itself is the nearest there is to see.
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

std::vector<cgroup_place> memory_cgroups(const std::string& root) {
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
    if (has_option(controllers, "memory")) {
      in_version_1 = line.substr(second + 1);
    } else if (controllers.empty()) {
      in_version_2 = line.substr(second + 1);
    }
  }
  std::vector<cgroup_place> found;
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
      found.push_back({root + words[4], path_below(*in_version_2, words[3]), true});
    } else if (type == "cgroup" && in_version_1 && has_option(dash[3], "memory")) {
      found.push_back({root + words[4], path_below(*in_version_1, words[3]), false});
    }
  }
  return found;
}

/// Of a cgroup; nothing when it has none.
std::optional<std::uint64_t> limit_in(const std::string& directory, bool is_version_2) {
  const file_names& names = is_version_2 ? version_2 : version_1;
  const auto limit = read_number(directory + "/" + std::string(names.limit));
  return limit && *limit != unlimited ? limit : std::nullopt;
}

/// What one cgroup with a limit leaves; nothing when its files say nothing.
std::optional<std::uint64_t> free_in(const std::string& directory,
                                     bool is_version_2,
                                     std::uint64_t limit,
                                     std::uint64_t free_swap) {
  const file_names& names = is_version_2 ? version_2 : version_1;
  const auto file = [&](std::string_view name) { return directory + "/" + std::string(name); };
  const auto usage = read_number(file(names.usage));
  if (!usage) {
    return std::nullopt;
  }
  std::uint64_t cache = 0;
  if (const auto stat = read_small_file(file("memory.stat"))) {
    cache = value_of(*stat, names.inactive) + value_of(*stat, names.active);
  }
  const std::uint64_t room = plus(less(limit, *usage), cache);
  if (is_version_2) {
    const auto swap = read_number(file("memory.swap.max"));
    const auto used = read_number(file("memory.swap.current"));
    return plus(room, std::min(free_swap, swap && used ? less(*swap, *used) : 0));
  }
  // Of memory and swap together.
  const auto both = read_number(file("memory.memsw.limit_in_bytes"));
  const auto used = read_number(file("memory.memsw.usage_in_bytes"));
  return std::min(plus(room, free_swap),
                  both && used ? plus(less(*both, *used), cache) : unlimited);
}

}  // namespace

memory_bounds::memory_bounds(std::string root) : root_(std::move(root)) {
  for (const cgroup_place& place : memory_cgroups(root_)) {
    std::string path = place.path;
    for (;;) {
      groups_.push_back({place.mount + path, path.empty() ? "/" : path, place.is_version_2});
      if (path.empty()) {
        break;
      }
      path.resize(path.rfind('/'));
    }
  }
}

std::vector<memory_bound> memory_bounds::read() const {
  const machine_memory machine = memory_of_machine(root_);
  std::vector<memory_bound> found;
  if (machine.available != 0) {
    found.push_back({machine.total, plus(machine.available, machine.free_swap), {}});
  }
  for (const group& each : groups_) {
    if (const auto limit = limit_in(each.directory, each.is_version_2)) {
      if (const auto left = free_in(each.directory, each.is_version_2, *limit, machine.free_swap)) {
        found.push_back({*limit, *left, each.shown});
      }
    }
  }
  return found;
}

std::uint64_t memory_bounds::least_limit_bytes() const {
  const std::uint64_t total = memory_of_machine(root_).total;
  std::uint64_t least = total == 0 ? unlimited : total;
  for (const group& each : groups_) {
    least = std::min(least, limit_in(each.directory, each.is_version_2).value_or(unlimited));
  }
  return least;
}

}  // namespace gpushm::base
