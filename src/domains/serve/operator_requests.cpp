// SPDX-License-Identifier: Apache-2.0
// What operators and the agent ask of domains: figures, lists, removals, reports of lost GPUs.
#include <fmt/core.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "base/text/quoted.hpp"
#include "base/text/size_text.hpp"
#include "broker/hub/hub.hpp"
#include "domains/serve/domain_set.hpp"
#include "domains/serve/run_directory.hpp"
#include "domains/serve/segment_rows.hpp"
#include "domains/serve/statistics_of.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

/// Nodes of one reply, besides the domain: those that use the most.
constexpr std::size_t max_usage_nodes = 32;

keeper_state state_of(std::optional<succession::keeper_health::state> keeper) {
  using state = succession::keeper_health::state;
  switch (keeper.value_or(state::reads)) {
    case state::reads:
      return keeper ? keeper_state::reads : keeper_state::unknown;
    case state::slow:
      return keeper_state::slow;
    case state::full:
      return keeper_state::full;
    case state::gone:
      return keeper_state::gone;
  }
  return keeper_state::unknown;
}

}  // namespace

void domain_set::lose_device(const base::lost_device& device) {
  constexpr const char* operation = "report a lost GPU";
  const std::string& uuid = device.uuid;
  if (uuid.empty()) {
    throw error(errc::invalid_argument,
                operation,
                uuid,
                "it has no UUID",
                "name it as `gpushm topo` and `nvidia-smi -L` do");
  }
  const std::string why = base::text_of(device.loss);
  base::log(log_level::warning,
            fmt::format("{} was reported lost{}{}: its segments are gone",
                        base::in_quotes(uuid),
                        why.empty() ? "" : " after ",
                        why));
  std::vector<std::pair<std::string, std::future<void>>> results;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [domain, each] : open_) {
      if (!each.serving) {
        continue;  // it has no segments
      }
      const auto promised = std::make_shared<std::promise<void>>();
      results.emplace_back(domain, promised->get_future());
      each.serving->get().post([promised, device](broker_detail::hub& hub) {
        try {
          hub.lose_device(device, [promised] { promised->set_value(); });
        } catch (...) {
          promised->set_exception(std::current_exception());
        }
      });
    }
  }
  const auto deadline = base::deadline_after(options_.timeout);
  for (auto& [domain, got] : results) {
    if (got.wait_until(deadline) != std::future_status::ready) {
      throw error(errc::timed_out,
                  operation,
                  uuid,
                  "the broker of domain " + domain + " is busy",
                  "repeat it; a broker that hangs is replaced by its keeper");
    }
    try {
      got.get();
    } catch (const std::future_error&) {
      throw error(
          errc::broker_unreachable, operation, uuid, "domain " + domain + " ends", "repeat it");
    }
  }
}

template <typename Work>
auto domain_set::ask(const char* operation,
                     const std::string& domain,
                     std::chrono::steady_clock::time_point deadline,
                     Work work) const {
  using result = decltype(work(std::declval<broker_detail::hub&>()));
  const auto promised = std::make_shared<std::promise<result>>();
  auto got = promised->get_future();
  {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(domain);
    if (at == open_.end() || !at->second.serving) {
      throw error(errc::invalid_argument,
                  operation,
                  domain,
                  "no such domain is served",
                  "see the log of gpushm-brokerd; `ls DIR/d` lists the domains");
    }
    at->second.serving->get().post([promised, work = std::move(work)](broker_detail::hub& hub) {
      try {
        promised->set_value(work(hub));
      } catch (...) {
        promised->set_exception(std::current_exception());
      }
    });
  }
  if (got.wait_until(deadline) != std::future_status::ready) {
    throw error(errc::timed_out,
                operation,
                domain,
                "its broker is busy",
                "try again; a broker that hangs is replaced by its keeper");
  }
  try {
    return got.get();
  } catch (const std::future_error&) {
    throw error(errc::broker_unreachable, operation, domain, "its broker ends", "try again");
  }
}

std::vector<usage> domain_set::process_budgets() const {
  std::vector<usage> result;
  for (const core::resource resource :
       {core::resource::memory_bytes, core::resource::descriptors}) {
    result.push_back({"process",
                      "gpushm-brokerd",
                      std::string(core::to_string(resource)),
                      {},
                      budget_->used(resource),
                      budget_->capacity(resource)});
  }
  return result;
}

usages domain_set::read_usage(const std::string& domain) const {
  struct of_domain {
    std::vector<core::node_usage> nodes;
    std::uint64_t freeing_bytes = 0;
  };
  const auto deadline = base::deadline_after(options_.timeout);
  const of_domain got = ask("read usage", domain, deadline, [](broker_detail::hub& hub) {
    return of_domain{hub.domain().budget().usages(max_usage_nodes), hub.freeing_bytes()};
  });
  usages result;
  {
    const std::lock_guard lock(mutex_);
    result.quotas = quota_text_;
  }
  for (const usage& each : process_budgets()) {
    if (each.limit != 0) {
      result.all.push_back(each);
    }
  }
  if (got.freeing_bytes != 0) {
    result.all.push_back({"domain", domain, "freeing_bytes", {}, got.freeing_bytes, 0});
  }
  for (const core::node_usage& each : got.nodes) {
    if (result.all.size() == max_usages) {
      break;
    }
    result.all.push_back({std::string(core::to_string(each.kind)),
                          each.kind == core::level::domain ? domain : each.name,
                          std::string(core::to_string(each.what)),
                          each.gpu,
                          each.used,
                          each.limit});
  }
  return result;
}

segment_page domain_set::list_segments(const std::string& domain, std::uint32_t slot) const {
  return ask("list segments",
             domain,
             base::deadline_after(options_.timeout),
             [slot](broker_detail::hub& hub) { return page_of_segments(hub.domain(), slot); });
}

bool domain_set::remove_unheld(const std::string& domain, gpushm::generation generation) const {
  struct removal {
    std::string name;
    std::uint64_t bytes = 0;
    bool is_done = false;
  };
  const removal one = ask("remove",
                          domain,
                          base::deadline_after(options_.timeout),
                          [generation](broker_detail::hub& hub) {
                            removal result;
                            if (const auto* const found = hub.domain().find_segment(generation)) {
                              result.name = found->name;
                              result.bytes = found->allocated_bytes;
                            }
                            result.is_done = hub.remove_unheld(generation);
                            return result;
                          });
  if (one.is_done) {
    base::log(log_level::info,
              fmt::format("domain {}: removed {} ({}) for an operator: no process had it open",
                          domain,
                          base::in_quotes(one.name),
                          base::size_text(one.bytes)));
  }
  return one.is_done;
}

broker_facts domain_set::read_broker() const {
  broker_facts result;
  result.version = options_.version;
  result.started_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(started_.time_since_epoch()).count());
  {
    const std::lock_guard lock(mutex_);
    result.starts = starts_.starts;
    result.takeovers = starts_.takeovers;
    result.failed_takeovers = starts_.failed_takeovers;
  }
  result.budgets = process_budgets();
  result.process = usage_of_this_process();
  return result;
}

domain_statistics domain_set::read_statistics(const std::string& domain) const {
  struct look {
    core::segment_survey survey;
    bool more = true;
  };
  constexpr const char* operation = "read statistics";
  const auto deadline = base::deadline_after(options_.timeout);
  const auto shared = std::make_shared<look>();  // with a turn that may come too late
  // In the first turn, so that all numbers of a domain with few segments are of one moment.
  domain_statistics result = ask(operation, domain, deadline, [shared](broker_detail::hub& hub) {
    domain_statistics first =
        statistics_of(hub.domain(), hub.waits_to_close(), hub.counted_requests(), hub.reports());
    shared->more = hub.domain().survey_some(shared->survey);
    return first;
  });
  while (shared->more) {
    ask(operation, domain, deadline, [shared](broker_detail::hub& hub) {
      shared->more = hub.domain().survey_some(shared->survey);
      return true;
    });
  }
  add_survey(result, shared->survey);
  return result;
}

std::vector<domain_set::round> domain_set::start_rounds() const {
  std::vector<round> result;
  const std::lock_guard lock(mutex_);
  for (const auto& [domain, each] : open_) {
    if (each.serving) {
      auto token = std::make_shared<const bool>(true);
      result.push_back({domain, token});
      each.serving->get().pass(std::move(token));
    }
  }
  return result;
}

std::vector<reading> domain_set::read() const {
  std::map<std::string, reading> results;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [domain, each] : open_) {
      reading& one = results[domain];
      one.open = true;
      if (each.serving) {
        one.counted = each.serving->get().statistics();
        const broker_detail::return_counts returns = each.serving->get().returns();
        one.handed_back = returns.handed_back;
        one.lost = returns.lost;
        one.freeing_bytes = each.serving->get().freeing_bytes();
        one.keeper = state_of(each.serving->get().keeper());
        one.serving = each.problem.empty();
      }
      one.problem = each.problem;
    }
  }
  for (const std::string& name : names_in(directory_)) {
    results.try_emplace(name);
  }
  std::vector<reading> result;
  result.reserve(results.size());
  for (auto& [domain, each] : results) {
    each.domain = domain;
    result.push_back(std::move(each));
  }
  return result;
}

}  // namespace gpushm::domains
