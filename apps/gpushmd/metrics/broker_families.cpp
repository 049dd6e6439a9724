// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/metrics/broker_families.hpp"

#include <array>
#include <utility>

#include "apps/gpushmd/metrics/domain_families.hpp"
#include "apps/gpushmd/metrics/process_families.hpp"

namespace gpushm::metrics {

namespace {

using domains::domain_statistics;
using domains::principal_statistics;
using prometheus::MetricFamily;
using statistics_of_domains = std::map<std::string, domain_statistics>;

families facts_of(const domains::broker_facts& facts) {
  families families;
  add(families.emplace_back(
          gauge("gpushm_broker_info", "Always 1; the labels identify the broker that serves")),
      {{"version", facts.version}},
      1);
  append(families, families_of(facts.process, "gpushm_broker_", "gpushm-brokerd"));
  const auto count = [&](const char* name, const char* help, std::uint64_t value) {
    add(families.emplace_back(counter(name, help)), {}, number(value));
  };
  count("gpushm_broker_starts_total",
        "Processes of the broker that became ready, since the run directory was created",
        facts.starts);
  count("gpushm_broker_takeovers_total",
        "Of these, the ones that took over from the keeper of another pod or command",
        facts.takeovers);
  count("gpushm_broker_failed_takeovers_total",
        "Takeovers after which the earlier broker continued",
        facts.failed_takeovers);
  return families;
}

/// Limits of 0, which are none, are left out, so that used / limit has no value.
void add_budgets(families& families, const broker_reading& reading) {
  MetricFamily used = gauge("gpushm_budget_used",
                            "What the broker's process or a domain uses of one of its budgets");
  MetricFamily limit = gauge("gpushm_budget_limit", "The limit of a budget that has one");
  const auto report = [&](labels labels, const domains::usage& row) {
    labels.push_back({"budget", row.resource});
    if (!row.gpu.empty()) {
      labels.push_back({"gpu", row.gpu});
    }
    if (row.limit != 0) {
      add(limit, labels, number(row.limit));
    }
    add(used, std::move(labels), number(row.used));
  };
  if (reading.facts) {
    for (const domains::usage& row : reading.facts->budgets) {
      report({{"level", "process"}}, row);
    }
  }
  for (const auto& [domain, each] : reading.statistics) {
    for (const domains::usage& row : each.budgets) {
      report({{"level", "domain"}, {"domain", domain}}, row);
    }
  }
  families.push_back(std::move(used));
  families.push_back(std::move(limit));
}

struct principal_gauge {
  const char* name;
  const char* help;
  std::uint64_t principal_statistics::*value;
};
constexpr std::array principal_gauges{
    principal_gauge{"gpushm_principal_connections",
                    "Connections of a pod, a container or a uid",
                    &principal_statistics::connections},
    principal_gauge{"gpushm_principal_segments",
                    "Segments that a pod, a container or a uid has created",
                    &principal_statistics::segments},
    principal_gauge{"gpushm_principal_broker_memory_bytes",
                    "Memory of the broker that a pod, a container or a uid makes it use",
                    &principal_statistics::memory_bytes},
    principal_gauge{"gpushm_principal_descriptors",
                    "Descriptors of the broker that a pod, a container or a uid makes it use",
                    &principal_statistics::descriptors},
};

void add_principals(families& families, const statistics_of_domains& statistics) {
  MetricFamily bytes = gauge("gpushm_principal_segment_bytes",
                             "Bytes of the segments that a pod, a container or a uid has created");
  MetricFamily others = gauge("gpushm_other_principals",
                              "Pods, containers and uids that the principal \"other\" sums up");
  for (const auto& [domain, each] : statistics) {
    for (const principal_statistics& row : each.principals) {
      add(bytes,
          {{"domain", domain}, {"principal", row.name}, {"memory", "host"}},
          number(row.host_bytes));
      add(bytes,
          {{"domain", domain}, {"principal", row.name}, {"memory", "gpu"}},
          number(row.gpu_bytes));
    }
    add(others, {{"domain", domain}}, number(each.others));
  }
  families.push_back(std::move(bytes));
  families.push_back(std::move(others));
  for (const principal_gauge& which : principal_gauges) {
    MetricFamily& one = families.emplace_back(gauge(which.name, which.help));
    for (const auto& [domain, each] : statistics) {
      for (const principal_statistics& row : each.principals) {
        add(one, {{"domain", domain}, {"principal", row.name}}, number(row.*which.value));
      }
    }
  }
}

void add_aliases(families& families, const statistics_of_domains& statistics) {
  MetricFamily number_of =
      gauge("gpushm_alias_version", "Number of the version that an alias refers to");
  MetricFamily others =
      gauge("gpushm_other_aliases", "Aliases without a series, or that refer to no version");
  for (const auto& [domain, each] : statistics) {
    for (const domains::alias_statistics& row : each.aliases) {
      add(number_of, {{"domain", domain}, {"alias", row.name}}, number(row.number));
    }
    add(others, {{"domain", domain}}, number(each.other_aliases));
  }
  families.push_back(std::move(number_of));
  families.push_back(std::move(others));
}

void add_segments(families& families, const statistics_of_domains& statistics) {
  MetricFamily unheld =
      gauge("gpushm_unheld_segments", "Persistent segments that no process has open");
  MetricFamily unheld_bytes = gauge("gpushm_unheld_bytes", "Bytes of these segments");
  MetricFamily pending = gauge("gpushm_release_pending_segments",
                               "Segments whose memory waits for the fence, or for the close of its "
                               "files");
  MetricFamily pending_bytes = gauge("gpushm_release_pending_bytes", "Bytes of these segments");
  MetricFamily pending_age =
      gauge("gpushm_release_pending_age_seconds", "How long the oldest of these segments waits");
  MetricFamily backend = gauge("gpushm_backend_segments", "Segments by kind of memory");
  MetricFamily backend_bytes = gauge("gpushm_backend_bytes", "Bytes of segments by kind of memory");
  constexpr std::uint64_t ns_per_ms = 1'000'000;
  for (const auto& [domain, each] : statistics) {
    add(unheld, {{"domain", domain}}, number(each.unheld.segments));
    add(unheld_bytes, {{"domain", domain}}, number(each.unheld.bytes));
    for (const auto& [reason, amount] :
         {std::pair("fence", &each.fence_waits), std::pair("close", &each.close_waits)}) {
      const labels of{{"domain", domain}, {"reason", reason}};
      add(pending, of, number(amount->segments));
      add(pending_bytes, of, number(amount->bytes));
      add(pending_age, of, seconds(amount->oldest_ms * ns_per_ms));
    }
    for (const domains::kind_statistics& kind : each.kinds) {
      const labels of{{"domain", domain}, {"backend", kind.name}};
      add(backend, of, number(kind.amount.segments));
      add(backend_bytes, of, number(kind.amount.bytes));
    }
  }
  for (MetricFamily* each :
       {&unheld, &unheld_bytes, &pending, &pending_bytes, &pending_age, &backend, &backend_bytes}) {
    families.push_back(std::move(*each));
  }
}

void add_channels(families& families, const statistics_of_domains& statistics) {
  MetricFamily channels = gauge("gpushm_channels", "Channels with a producer");
  MetricFamily items = counter("gpushm_channel_items_total",
                               "Items that producers of channels have published, as they report");
  MetricFamily bytes = counter("gpushm_channel_bytes_total", "Bytes of the slots of these items");
  for (const auto& [domain, each] : statistics) {
    add(channels, {{"domain", domain}}, number(each.channels));
    add(items, {{"domain", domain}}, number(each.channel_items));
    add(bytes, {{"domain", domain}}, number(each.channel_item_bytes));
  }
  for (MetricFamily* each : {&channels, &items, &bytes}) {
    families.push_back(std::move(*each));
  }
}

void add_imports(families& families, const statistics_of_domains& statistics) {
  MetricFamily& imports = families.emplace_back(
      histogram("gpushm_import_duration_seconds",
                "Duration from the broker's reply to a client's mapping, as measured by clients"));
  for (const auto& [domain, each] : statistics) {
    add(imports,
        {{"domain", domain}},
        each.import_latency,
        open_latency_bounds_ns,
        each.import_latency_sum_ns);
  }
}

void add_requests(families& families, const statistics_of_domains& statistics) {
  MetricFamily refusals =
      counter("gpushm_refusals_total", "Requests and connections that the broker refused");
  MetricFamily durations =
      histogram("gpushm_request_duration_seconds",
                "Time in the broker from taking up a request until its effects are permanent and "
                "its reply is sent or waits for a condition");
  for (const auto& [domain, each] : statistics) {
    for (const domains::refusal_statistics& row : each.refusals) {
      add(refusals,
          {{"domain", domain},
           {"operation", row.request},
           {"code", std::string(to_string(row.code))}},
          number(row.count));
    }
    for (const domains::request_latency& row : each.latencies) {
      add(durations,
          {{"domain", domain}, {"operation", row.request}},
          row.counts,
          domains::request_latency_bounds_ns,
          row.sum_ns);
    }
  }
  families.push_back(std::move(refusals));
  families.push_back(std::move(durations));
}

}  // namespace

families families_of(const broker_reading& reading) {
  families families;
  add(families.emplace_back(gauge("gpushm_broker_up", "1 if gpushm-brokerd answered this scrape")),
      {},
      reading.replied ? 1 : 0);
  append(families, families_of(reading.domains));
  if (!reading.replied) {
    return families;
  }
  if (reading.facts) {
    append(families, facts_of(*reading.facts));
  }
  add_budgets(families, reading);
  add_principals(families, reading.statistics);
  add_aliases(families, reading.statistics);
  add_segments(families, reading.statistics);
  add_channels(families, reading.statistics);
  add_imports(families, reading.statistics);
  add_requests(families, reading.statistics);
  return families;
}

}  // namespace gpushm::metrics
