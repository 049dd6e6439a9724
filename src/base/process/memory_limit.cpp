// SPDX-License-Identifier: Apache-2.0
#include "base/process/memory_limit.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "base/files/file.hpp"

namespace gpushm::base {

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
/// Version 1 reports "no limit" as the largest number of whole pages.
constexpr std::uint64_t min_unlimited = std::uint64_t{1} << 60U;

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) {
    return std::nullopt;
  }
  return value;
}

/// The number in a file; `unlimited` for "max" and for version 1's equivalent.
std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_small_file(path);
  if (!text) {
    return std::nullopt;
  }
  if (text->starts_with("max")) {
    return unlimited;
  }
  const auto value = number_in(*text);
  return value && *value >= min_unlimited ? unlimited : value;
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

std::uint64_t less(std::uint64_t amount, std::uint64_t taken) {
  return amount == unlimited ? unlimited : amount - std::min(amount, taken);
}
std::uint64_t plus(std::uint64_t left, std::uint64_t right) {
  return left > unlimited - right ? unlimited : left + right;
}

// ---- the machine ----

struct machine_memory {
  std::uint64_t total = 0;  // 0: unknown
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

/// File and key names of the two versions.
struct file_names {
  std::string_view limit;
  std::string_view usage;
  std::string_view inactive;
  std::string_view active;
  std::string_view events;
};
constexpr file_names version_1{"memory.limit_in_bytes",
                               "memory.usage_in_bytes",
                               "total_inactive_file",
                               "total_active_file",
                               "memory.oom_control"};
constexpr file_names version_2{
    "memory.max", "memory.current", "inactive_file", "active_file", "memory.events"};

/// The limit of a cgroup; nullopt if it has none.
std::optional<std::uint64_t> limit_in(const std::string& directory, bool is_version_2) {
  const file_names& names = is_version_2 ? version_2 : version_1;
  const auto limit = read_number(directory + "/" + std::string(names.limit));
  return limit && *limit != unlimited ? limit : std::nullopt;
}

/// The memory left in one cgroup with a limit; nullopt if its files do not report it.
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
  // Limits of memory and swap together.
  const auto both = read_number(file("memory.memsw.limit_in_bytes"));
  const auto used = read_number(file("memory.memsw.usage_in_bytes"));
  return std::min(plus(room, free_swap),
                  both && used ? plus(less(*both, *used), cache) : unlimited);
}

}  // namespace

memory_bounds::memory_bounds(std::string root)
    : root_(std::move(root)), groups_(cgroups_of(root_, "memory")) {}

std::vector<memory_bound> memory_bounds::read() const {
  const machine_memory machine = memory_of_machine(root_);
  std::vector<memory_bound> bounds;
  if (machine.available != 0) {
    bounds.push_back({machine.total, plus(machine.available, machine.free_swap), {}});
  }
  for (const cgroup_place& each : groups_) {
    if (const auto limit = limit_in(each.directory, each.is_version_2)) {
      if (const auto left = free_in(each.directory, each.is_version_2, *limit, machine.free_swap)) {
        bounds.push_back({*limit, *left, each.shown});
      }
    }
  }
  return bounds;
}

std::uint64_t memory_bounds::lowest_limit_bytes() const {
  const std::uint64_t total = memory_of_machine(root_).total;
  std::uint64_t lowest = total == 0 ? unlimited : total;
  for (const cgroup_place& each : groups_) {
    lowest = std::min(lowest, limit_in(each.directory, each.is_version_2).value_or(unlimited));
  }
  return lowest;
}

std::optional<container_memory> memory_of_container(const std::string& root) {
  for (const cgroup_place& each : cgroups_of(root, "memory")) {
    const file_names& names = each.is_version_2 ? version_2 : version_1;
    const auto limit = limit_in(each.directory, each.is_version_2);
    const auto used = read_number(each.directory + "/" + std::string(names.usage));
    if (limit && used) {
      const auto events = read_small_file(each.directory + "/" + std::string(names.events));
      return container_memory{*used, *limit, events ? value_of(*events, "oom_kill") : 0};
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::base
