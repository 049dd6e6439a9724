// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/statistics_of.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "domains/protocol/messages.hpp"

namespace gpushm::domains {

namespace {

std::uint64_t milliseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  return static_cast<std::uint64_t>(std::max<std::int64_t>(age.count(), 0));
}

principal_statistics row_of(std::string name, const core::node::amounts& used) {
  const auto used_of = [&](core::resource resource) {
    return used.at(static_cast<std::size_t>(resource));
  };
  using core::resource;
  return {std::move(name),
          used_of(resource::connections),
          used_of(resource::segments),
          used_of(resource::host_bytes),
          used_of(resource::gpu_bytes),
          used_of(resource::memory_bytes),
          used_of(resource::descriptors),
          used_of(resource::subscriptions),
          used_of(resource::waiting_opens)};
}

}  // namespace

domain_statistics statistics_of(const core::domain& domain,
                                const broker_detail::closer::waiting& closing,
                                const broker_detail::request_counts& requests,
                                const broker_detail::report_counts& reports) {
  domain_statistics result;
  result.channel_items = reports.items;
  result.channel_item_bytes = reports.item_bytes;
  result.import_latency = reports.import_latency;
  result.import_latency_sum_ns = reports.import_latency_sum_ns;
  const core::budget& budget = domain.budget();
  const core::principal_usages used = budget.usages_of_principals(max_principals);
  for (const auto& each : used.largest) {
    result.principals.push_back(row_of(each.name, each.used));
  }
  result.others = used.other_count;
  if (used.other_count != 0) {
    result.principals.push_back(row_of(std::string(other_principals), used.others));
  }
  for (const core::node_usage& each : budget.own_usages()) {
    if (result.budgets.size() == max_usages) {
      break;
    }
    result.budgets.push_back({"domain",
                              domain.name(),
                              std::string(core::to_string(each.what)),
                              each.gpu,
                              each.used,
                              each.limit});
  }
  std::size_t other_aliases = 0;
  for (auto& each : domain.aliases(max_aliases, max_alias_bytes, other_aliases)) {
    result.aliases.push_back({std::move(each.name), each.number});
  }
  result.other_aliases = other_aliases;
  result.close_waits = {closing.segments,
                        closing.bytes,
                        closing.segments == 0 ? 0 : milliseconds_since(closing.since)};
  for (const auto& each : requests.refusals()) {
    result.refusals.push_back({std::string(to_string(each.what)), each.code, each.count});
  }
  std::stable_sort(result.refusals.begin(),
                   result.refusals.end(),
                   [](const auto& left, const auto& right) { return left.count > right.count; });
  result.refusals.resize(std::min(result.refusals.size(), max_refusals));
  for (const auto& each : requests.latencies()) {
    result.latencies.push_back({std::string(to_string(each.what)), each.counts, each.sum_ns});
  }
  return result;
}

void add_survey(domain_statistics& statistics, const core::segment_survey& survey) {
  statistics.channels = survey.channels;
  statistics.unheld = {survey.unheld.segments, survey.unheld.bytes, 0};
  statistics.fence_waits = {survey.ending.segments,
                            survey.ending.bytes,
                            survey.ending_since ? milliseconds_since(*survey.ending_since) : 0};
  for (std::size_t i = 0; i < survey.by_kind.size(); ++i) {
    const core::segment_survey::part& each = survey.by_kind.at(i);
    if (each.segments != 0) {
      statistics.kinds.push_back(
          {std::string(to_string(static_cast<backend>(i))), {each.segments, each.bytes, 0}});
    }
  }
}

}  // namespace gpushm::domains
