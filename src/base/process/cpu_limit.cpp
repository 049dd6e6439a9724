// SPDX-License-Identifier: Apache-2.0
#include "base/process/cpu_limit.hpp"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <thread>

#include "base/files/file.hpp"
#include "base/process/cgroups.hpp"

namespace gpushm::base {

namespace {

double runnable_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    return CPU_COUNT(&allowed);
  }
  return std::max(1U, std::thread::hardware_concurrency());  // more CPUs than the set has room for
}

/// "QUOTA PERIOD" in microseconds; nothing for "max", -1 and anything that is not a number.
std::optional<double> quota_in(const std::string& text) {
  std::istringstream in(text);
  double quota = 0;
  double period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return std::nullopt;
}

std::optional<double> quota_of(const cgroup_place& group) {
  const auto read = [&](const char* name) {
    return read_small_file(group.directory + "/" + name).value_or(std::string());
  };
  return quota_in(group.is_version_2 ? read("cpu.max")
                                     : read("cpu.cfs_quota_us") + " " + read("cpu.cfs_period_us"));
}

}  // namespace

double cpu_limit(const std::string& root) {
  double least = runnable_cpus();
  for (const cgroup_place& group : cgroups_of(root, "cpu")) {
    least = std::min(least, quota_of(group).value_or(least));
  }
  return least;
}

}  // namespace gpushm::base
