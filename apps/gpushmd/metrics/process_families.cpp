// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/process_families.hpp"

#include <utility>

namespace gpushm::metrics {

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double nanoseconds_per_second = 1e9;

MetricFamily family(std::string name, std::string help, MetricType type, double value) {
  MetricFamily result;
  result.name = std::move(name);
  result.help = std::move(help);
  result.type = type;
  prometheus::ClientMetric& metric = result.metric.emplace_back();
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return result;
}

}  // namespace

std::vector<MetricFamily> families_of(const domains::process_usage& usage,
                                      const std::string& prefix,
                                      const std::string& program) {
  const auto gauge = [&](const char* name, const std::string& what, double value) {
    return family(prefix + name, what + " of " + program, MetricType::Gauge, value);
  };
  std::vector<MetricFamily> all;
  all.push_back(family(prefix + "cpu_seconds_total",
                       "Processor time of " + program + ", in user and system mode",
                       MetricType::Counter,
                       static_cast<double>(usage.cpu_ns) / nanoseconds_per_second));
  all.push_back(
      gauge("resident_memory_bytes", "Resident memory", static_cast<double>(usage.resident_bytes)));
  all.push_back(
      gauge("virtual_memory_bytes", "Virtual memory", static_cast<double>(usage.virtual_bytes)));
  all.push_back(
      gauge("open_fds", "Open file descriptors", static_cast<double>(usage.open_descriptors)));
  all.push_back(gauge(
      "max_fds", "Limit of open file descriptors", static_cast<double>(usage.max_descriptors)));
  all.push_back(gauge("start_time_seconds",
                      "Start time, in seconds since 1970,",
                      static_cast<double>(usage.start_unix_ns) / nanoseconds_per_second));
  return all;
}

}  // namespace gpushm::metrics
