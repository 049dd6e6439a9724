// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/process_families.hpp"

namespace gpushm::metrics {

families families_of(const domains::process_usage& usage,
                     const std::string& prefix,
                     const std::string& program) {
  families families;
  add(families.emplace_back(counter(prefix + "cpu_seconds_total",
                                    "Processor time of " + program + ", in user and system mode")),
      {},
      seconds(usage.cpu_ns));
  const auto report = [&](const char* name, const std::string& help, double value) {
    add(families.emplace_back(gauge(prefix + name, help + " of " + program)), {}, value);
  };
  report("resident_memory_bytes", "Resident memory", number(usage.resident_bytes));
  report("virtual_memory_bytes", "Virtual memory", number(usage.virtual_bytes));
  report("open_fds", "Open file descriptors", number(usage.open_descriptors));
  report("max_fds", "Limit of open file descriptors", number(usage.max_descriptors));
  report("start_time_seconds", "Time since 1970 of the start", seconds(usage.start_unix_ns));
  return families;
}

}  // namespace gpushm::metrics
