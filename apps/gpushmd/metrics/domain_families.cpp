// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/domain_families.hpp"

#include <array>
#include <utility>

namespace gpushm::metrics {

namespace {

using prometheus::MetricFamily;

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

}  // namespace

families families_of(const std::vector<domains::reading>& readings) {
  families families;
  if (readings.empty()) {
    return families;
  }
  MetricFamily serving =
      gauge("gpushm_domain_serving", "1 while new clients can connect to the domain");
  MetricFamily freeing = gauge("gpushm_freeing_bytes",
                               "Memory of removed segments that is not free yet: part of "
                               "gpushm_segment_bytes");
  MetricFamily keeper = gauge("gpushm_keeper_state",
                              "1 for what the domain has noticed of the broker's keeper: reads, "
                              "slow, full or gone");
  MetricFamily opens = counter("gpushm_opens_total", "Successful opens, by what served them");
  MetricFamily failures = counter("gpushm_open_failures_total", "Opens that failed, by reason");
  MetricFamily unfenced =
      counter("gpushm_unfenced_total",
              "Segments whose memory an operator released without waiting for the fence");
  MetricFamily handed_back =
      counter("gpushm_segments_handed_back_total",
              "Segments that processes handed back after the broker and its keeper had died");
  MetricFamily lost = counter("gpushm_segments_lost_total",
                              "Persistent segments that no process had when the broker and its "
                              "keeper died");
  MetricFamily latency = histogram(
      "gpushm_open_duration_seconds",
      "Duration from a client's call to its mapping, including waiting, as measured by clients");
  for (const domain_gauge& each : domain_gauges) {
    MetricFamily& one = families.emplace_back(gauge(each.name, each.help));
    for (const domains::reading& from : readings) {
      if (from.open) {
        add(one, {{"domain", from.domain}}, number(from.counted.*each.value));
      }
    }
  }
  for (const domains::reading& from : readings) {
    const labels domain{{"domain", from.domain}};
    add(serving, domain, from.serving ? 1 : 0);
    if (!from.open) {
      continue;
    }
    add(freeing, domain, number(from.freeing_bytes));
    if (from.keeper != domains::keeper_state::unknown) {
      add(keeper, {{"domain", from.domain}, {"state", to_string(from.keeper)}}, 1);
    }
    add(opens, {{"domain", from.domain}, {"by", "broker"}}, number(from.counted.opens));
    add(opens, {{"domain", from.domain}, {"by", "cache"}}, number(from.counted.cached_opens));
    for (const auto& [why, count] : from.counted.open_failures) {
      add(failures,
          {{"domain", from.domain}, {"errc", std::string(to_string(why))}},
          number(count));
    }
    add(unfenced, domain, number(from.counted.unfenced));
    add(handed_back, domain, number(from.handed_back));
    add(lost, domain, number(from.lost));
    add(latency,
        domain,
        from.counted.open_latency,
        open_latency_bounds_ns,
        from.counted.open_latency_sum_ns);
  }
  for (MetricFamily* each :
       {&serving, &freeing, &keeper, &opens, &failures, &unfenced, &handed_back, &lost, &latency}) {
    families.push_back(std::move(*each));
  }
  return families;
}

families families_of(const std::vector<resource_reading>& readings) {
  if (readings.empty()) {
    return {};
  }
  MetricFamily devices =
      gauge("gpushm_device_plugin_devices", "Devices reported to the kubelet, by health");
  MetricFamily registered = gauge("gpushm_device_plugin_registered",
                                  "1 while the resource is registered with the kubelet");
  for (const resource_reading& from : readings) {
    add(devices, {{"resource", from.resource}, {"health", "healthy"}}, number(from.healthy));
    add(devices, {{"resource", from.resource}, {"health", "unhealthy"}}, number(from.unhealthy));
    add(registered, {{"resource", from.resource}}, from.registered ? 1 : 0);
  }
  return {std::move(devices), std::move(registered)};
}

families families_of(const std::vector<dra_reading>& readings) {
  if (readings.empty()) {
    return {};
  }
  const dra_reading& from = readings.front();
  MetricFamily claims = gauge("gpushm_dra_prepared_claims", "Claims with an open domain");
  MetricFamily devices =
      gauge("gpushm_dra_published_devices", "Devices in the node's ResourceSlice");
  MetricFamily registered =
      gauge("gpushm_dra_registered", "1 while the driver is registered with the kubelet");
  add(claims, {}, number(from.prepared_claims));
  add(devices, {}, number(from.published_devices));
  MetricFamily expected =
      gauge("gpushm_dra_expected",
            "0 if the API server or the kubelet is without DRA, so that no driver is registered");
  add(registered, {}, from.registered ? 1 : 0);
  add(expected, {}, from.expected ? 1 : 0);
  families families{
      std::move(claims), std::move(devices), std::move(registered), std::move(expected)};
  if (from.api_served) {
    add(families.emplace_back(gauge("gpushm_dra_api_served",
                                    "1 if the API server serves a supported version of DRA's API")),
        {},
        *from.api_served ? 1 : 0);
  }
  return families;
}

}  // namespace gpushm::metrics
