// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/domain_families.hpp"

#include <functional>
#include <limits>
#include <utility>

namespace gpushm::metrics {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double nanoseconds_per_second = 1e9;

MetricFamily family(const char* name, const char* help, MetricType type) {
  MetricFamily result;
  result.name = name;
  result.help = help;
  result.type = type;
  return result;
}

void add(MetricFamily& to, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric& metric = to.metric.emplace_back();
  metric.label = std::move(labels);
  (to.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

double number(std::uint64_t value) {
  return static_cast<double>(value);
}

struct domain_gauge {
  const char* name;
  const char* help;
  std::uint64_t broker_statistics::*value;
};
constexpr std::array domain_gauges{
    domain_gauge{"gpushm_segments", "Segments of the domain", &broker_statistics::segments},
    domain_gauge{"gpushm_segment_bytes",
                 "Bytes of the domain's segments",
                 &broker_statistics::allocated_bytes},
    domain_gauge{
        "gpushm_leases", "Leases that processes hold on segments", &broker_statistics::leases},
    domain_gauge{"gpushm_connections", "Connected clients", &broker_statistics::connections},
    domain_gauge{
        "gpushm_ending_connections",
        "Connections that disconnected without a goodbye and whose fence has not been reached",
        &broker_statistics::ending_connections},
    domain_gauge{"gpushm_waiting_opens",
                 "Opens waiting for a segment of that name",
                 &broker_statistics::waiting_opens},
};

ClientMetric latency_of(const domains::reading& from) {
  ClientMetric metric;
  metric.label = {{"domain", from.domain}};
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < from.counted.open_latency.size(); ++i) {
    below += from.counted.open_latency[i];
    ClientMetric::Bucket& bucket = metric.histogram.bucket.emplace_back();
    bucket.cumulative_count = below;
    bucket.upper_bound = i < open_latency_bounds_ns.size()
                             ? number(open_latency_bounds_ns[i]) / nanoseconds_per_second
                             : std::numeric_limits<double>::infinity();
  }
  metric.histogram.sample_count = below;
  metric.histogram.sample_sum = number(from.counted.open_latency_sum_ns) / nanoseconds_per_second;
  return metric;
}

}  // namespace

std::vector<MetricFamily> families_of(const std::vector<domains::reading>& readings) {
  std::vector<MetricFamily> all;
  if (readings.empty()) {
    return all;
  }
  for (const domain_gauge& each : domain_gauges) {
    MetricFamily& gauge = all.emplace_back(family(each.name, each.help, MetricType::Gauge));
    for (const domains::reading& from : readings) {
      add(gauge, {{"domain", from.domain}}, number(from.counted.*each.value));
    }
  }
  MetricFamily& serving = all.emplace_back(family(
      "gpushm_domain_serving", "1 while new clients can connect to the domain", MetricType::Gauge));
  for (const domains::reading& from : readings) {
    add(serving, {{"domain", from.domain}}, from.serving ? 1 : 0);
  }
  MetricFamily freeing = family("gpushm_freeing_bytes",
                                "Memory of removed segments that is not free yet: part of "
                                "gpushm_segment_bytes",
                                MetricType::Gauge);
  for (const domains::reading& from : readings) {
    add(freeing, {{"domain", from.domain}}, number(from.freeing_bytes));
  }
  all.push_back(std::move(freeing));
  MetricFamily keeper = family("gpushm_keeper_state",
                               "1 for what the domain has noticed of the broker's keeper: reads, "
                               "slow, full or gone",
                               MetricType::Gauge);
  for (const domains::reading& from : readings) {
    if (from.keeper != domains::keeper_state::unknown) {
      add(keeper, {{"domain", from.domain}, {"state", to_string(from.keeper)}}, 1);
    }
  }
  all.push_back(std::move(keeper));
  MetricFamily opens =
      family("gpushm_opens_total", "Successful opens, by what served them", MetricType::Counter);
  MetricFamily failures =
      family("gpushm_open_failures_total", "Opens that failed, by reason", MetricType::Counter);
  MetricFamily unfenced =
      family("gpushm_unfenced_total",
             "Segments whose memory an operator released without waiting for the fence",
             MetricType::Counter);
  MetricFamily handed_back =
      family("gpushm_segments_handed_back_total",
             "Segments that processes handed back after the broker and its keeper had died",
             MetricType::Counter);
  MetricFamily lost = family("gpushm_segments_lost_total",
                             "Persistent segments that no process had when the broker and its "
                             "keeper died",
                             MetricType::Counter);
  MetricFamily latency = family(
      "gpushm_open_duration_seconds",
      "Duration from a client's call to its mapping, including waiting, as measured by clients",
      MetricType::Histogram);
  for (const domains::reading& from : readings) {
    add(opens, {{"domain", from.domain}, {"by", "broker"}}, number(from.counted.opens));
    add(opens, {{"domain", from.domain}, {"by", "cache"}}, number(from.counted.cached_opens));
    for (const auto& [why, count] : from.counted.open_failures) {
      add(failures,
          {{"domain", from.domain}, {"errc", std::string(to_string(why))}},
          number(count));
    }
    add(unfenced, {{"domain", from.domain}}, number(from.counted.unfenced));
    add(handed_back, {{"domain", from.domain}}, number(from.handed_back));
    add(lost, {{"domain", from.domain}}, number(from.lost));
    latency.metric.push_back(latency_of(from));
  }
  all.push_back(std::move(opens));
  all.push_back(std::move(failures));
  all.push_back(std::move(unfenced));
  all.push_back(std::move(handed_back));
  all.push_back(std::move(lost));
  all.push_back(std::move(latency));
  return all;
}

std::vector<MetricFamily> families_of(const std::vector<resource_reading>& readings) {
  if (readings.empty()) {
    return {};
  }
  MetricFamily devices = family("gpushm_device_plugin_devices",
                                "Devices reported to the kubelet, by health",
                                MetricType::Gauge);
  MetricFamily registered = family("gpushm_device_plugin_registered",
                                   "1 while the resource is registered with the kubelet",
                                   MetricType::Gauge);
  for (const resource_reading& from : readings) {
    add(devices, {{"resource", from.resource}, {"health", "healthy"}}, number(from.healthy));
    add(devices, {{"resource", from.resource}, {"health", "unhealthy"}}, number(from.unhealthy));
    add(registered, {{"resource", from.resource}}, from.registered ? 1 : 0);
  }
  return {std::move(devices), std::move(registered)};
}

std::vector<MetricFamily> families_of(const std::vector<dra_reading>& readings) {
  if (readings.empty()) {
    return {};
  }
  const dra_reading& from = readings.front();
  MetricFamily claims =
      family("gpushm_dra_prepared_claims", "Claims with an open domain", MetricType::Gauge);
  MetricFamily devices = family(
      "gpushm_dra_published_devices", "Devices in the node's ResourceSlice", MetricType::Gauge);
  MetricFamily registered = family("gpushm_dra_registered",
                                   "1 while the driver is registered with the kubelet",
                                   MetricType::Gauge);
  add(claims, {}, number(from.prepared_claims));
  add(devices, {}, number(from.published_devices));
  add(registered, {}, from.registered ? 1 : 0);
  return {std::move(claims), std::move(devices), std::move(registered)};
}

}  // namespace gpushm::metrics
