// SPDX-License-Identifier: Apache-2.0
// `gpushm stat --broker`: gpushm-brokerd, its budgets beside their limits, and who uses them.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/output.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "domains/protocol/private_socket.hpp"

namespace gpushm::cli {

namespace {

using align = base::table::align;

struct domain_view {
  domains::reading reading;
  domains::domain_statistics counted;
};

std::string time_text(std::uint64_t nanoseconds) {
  using namespace std::chrono;
  const sys_time<seconds> at{duration_cast<seconds>(std::chrono::nanoseconds(nanoseconds))};
  const auto day = floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
                     static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()),
                     time.hours().count(),
                     time.minutes().count(),
                     time.seconds().count());
}

std::vector<domain_view> read_domains(const domains::private_socket& broker,
                                      const std::string& only) {
  std::vector<domain_view> result;
  for (domains::reading& each : broker.read(operator_timeout)) {
    if (!each.open || (!only.empty() && each.domain != only)) {
      continue;
    }
    domain_view& one = result.emplace_back();
    one.reading = std::move(each);
    if (one.reading.serving) {
      one.counted = broker.read_statistics(one.reading.domain, operator_timeout);
    }
  }
  if (result.empty() && !only.empty()) {
    throw error(errc::invalid_argument,
                "stat",
                only,
                "no such domain is served",
                "see the log of gpushm-brokerd; `gpushm stat --broker` shows its domains");
  }
  return result;
}

std::string budgets_text(const std::vector<domains::usage>& rows) {
  base::table table({{"BUDGET"}, {"USED", align::right}, {"LIMIT", align::right}});
  for (const domains::usage& each : rows) {
    table.add({each.gpu.empty() ? each.resource : each.gpu,
               amount_text(each, each.used),
               each.limit == 0 ? "-" : amount_text(each, each.limit)});
  }
  return table.text();
}

std::string principals_text(const std::vector<domains::principal_statistics>& rows) {
  base::table table({{"PRINCIPAL"},
                     {"SEGMENTS", align::right},
                     {"HOST", align::right},
                     {"GPU", align::right},
                     {"BROKER", align::right},
                     {"CONNECTIONS", align::right}});
  for (const domains::principal_statistics& each : rows) {
    table.add({each.name,
               std::to_string(each.segments),
               base::size_text(each.host_bytes),
               base::size_text(each.gpu_bytes),
               base::size_text(each.memory_bytes),
               std::to_string(each.connections)});
  }
  return table.text();
}

std::string text_of(const domains::segment_amount& amount) {
  return fmt::format("{} of {}", amount.segments, base::size_text(amount.bytes));
}

void print_text(const domains::broker_facts& broker, const std::vector<domain_view>& views) {
  print_line(fmt::format("gpushm-brokerd {}, started at {}; starts {}, takeovers {}, failed {}",
                         broker.version,
                         time_text(broker.started_ns),
                         broker.starts,
                         broker.takeovers,
                         broker.failed_takeovers));
  print(budgets_text(broker.budgets));
  for (const domain_view& each : views) {
    print_line("");
    print_line(fmt::format("domain {}{}",
                           each.reading.domain,
                           each.reading.problem.empty() ? "" : ": " + each.reading.problem));
    print_line("segments that no process has open: " + text_of(each.counted.unheld) +
               "; that wait for a fence: " + text_of(each.counted.fence_waits) +
               "; that are being freed: " + text_of(each.counted.close_waits));
    print_line(
        fmt::format("handed back: {}, lost: {}", each.reading.handed_back, each.reading.lost));
    print(budgets_text(each.counted.budgets));
    if (!each.counted.principals.empty()) {
      print(principals_text(each.counted.principals));
    }
  }
}

json to_json(const domains::segment_amount& amount) {
  return {{"segments", amount.segments},
          {"bytes", amount.bytes},
          {"oldest_milliseconds", amount.oldest_ms}};
}

json to_json(const std::vector<domains::usage>& rows) {
  json result = json::array();
  for (const domains::usage& each : rows) {
    result.push_back(cli::to_json(each));
  }
  return result;
}

json to_json(const domain_view& view) {
  json principals = json::array();
  for (const domains::principal_statistics& each : view.counted.principals) {
    principals.push_back({{"name", each.name},
                          {"connections", each.connections},
                          {"segments", each.segments},
                          {"host_bytes", each.host_bytes},
                          {"gpu_bytes", each.gpu_bytes},
                          {"memory_bytes", each.memory_bytes},
                          {"descriptors", each.descriptors},
                          {"subscriptions", each.subscriptions},
                          {"waiting_opens", each.waiting_opens}});
  }
  json refusals = json::array();
  for (const domains::refusal_statistics& each : view.counted.refusals) {
    refusals.push_back(
        {{"request", each.request}, {"code", to_string(each.code)}, {"count", each.count}});
  }
  return {{"domain", view.reading.domain},
          {"serving", view.reading.serving},
          {"problem", view.reading.problem.empty() ? json(nullptr) : json(view.reading.problem)},
          {"handed_back", view.reading.handed_back},
          {"lost", view.reading.lost},
          {"principals", std::move(principals)},
          {"budgets", to_json(view.counted.budgets)},
          {"unheld", to_json(view.counted.unheld)},
          {"fence_waits", to_json(view.counted.fence_waits)},
          {"close_waits", to_json(view.counted.close_waits)},
          {"refusals", std::move(refusals)}};
}

}  // namespace

int run_broker_stat(const stat_arguments& arguments) {
  const domains::private_socket socket(arguments.node.run_dir);
  const domains::broker_facts broker = socket.read_broker(operator_timeout);
  const std::vector<domain_view> views = read_domains(socket, arguments.node.domain);
  if (!arguments.connection.json) {
    print_text(broker, views);
    return exit_ok;
  }
  json domains = json::array();
  for (const domain_view& each : views) {
    domains.push_back(to_json(each));
  }
  print_json(json{{"broker",
                   {{"version", broker.version},
                    {"started", time_text(broker.started_ns)},
                    {"starts", broker.starts},
                    {"takeovers", broker.takeovers},
                    {"failed_takeovers", broker.failed_takeovers},
                    {"budgets", to_json(broker.budgets)}}},
                  {"domains", std::move(domains)}});
  return exit_ok;
}

}  // namespace gpushm::cli
