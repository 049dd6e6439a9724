// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::metrics {

using families = std::vector<prometheus::MetricFamily>;
using labels = std::vector<prometheus::ClientMetric::Label>;

inline constexpr double nanoseconds_per_second = 1e9;

[[nodiscard]] inline double number(std::uint64_t value) {
  return static_cast<double>(value);
}
[[nodiscard]] inline double seconds(std::uint64_t nanoseconds) {
  return number(nanoseconds) / nanoseconds_per_second;
}

[[nodiscard]] inline prometheus::MetricFamily family(std::string name,
                                                     std::string help,
                                                     prometheus::MetricType type) {
  prometheus::MetricFamily result;
  result.name = std::move(name);
  result.help = std::move(help);
  result.type = type;
  return result;
}
[[nodiscard]] inline prometheus::MetricFamily gauge(std::string name, std::string help) {
  return family(std::move(name), std::move(help), prometheus::MetricType::Gauge);
}
[[nodiscard]] inline prometheus::MetricFamily counter(std::string name, std::string help) {
  return family(std::move(name), std::move(help), prometheus::MetricType::Counter);
}
[[nodiscard]] inline prometheus::MetricFamily histogram(std::string name, std::string help) {
  return family(std::move(name), std::move(help), prometheus::MetricType::Histogram);
}

inline void append(families& target, families more) {
  target.insert(
      target.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Adds a sample of a gauge or counter.
inline void add(prometheus::MetricFamily& family, labels labels, double value) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  (family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
      value;
}

/// Adds a sample of a histogram. `counts` are those of each bucket, not cumulative; the last one
/// has no upper bound.
inline void add(prometheus::MetricFamily& family,
                labels labels,
                std::span<const std::uint64_t> counts,
                std::span<const std::uint64_t> bounds_ns,
                std::uint64_t sum_ns) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    prometheus::ClientMetric::Bucket& bucket = metric.histogram.bucket.emplace_back();
    bucket.cumulative_count = below;
    bucket.upper_bound =
        i < bounds_ns.size() ? seconds(bounds_ns[i]) : std::numeric_limits<double>::infinity();
  }
  metric.histogram.sample_count = below;
  metric.histogram.sample_sum = seconds(sum_ns);
}

}  // namespace gpushm::metrics
