// SPDX-License-Identifier: Apache-2.0
// Starts of domains' brokers: new ones, and those that continue what a predecessor has left.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/process/retry.hpp"
#include "base/report/log.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "broker/hub/hub.hpp"
#include "domains/serve/domain_set.hpp"
#include "domains/serve/run_directory.hpp"
#include "gpushm/error.hpp"
#include "succession/recorder/descriptor_shelf.hpp"

namespace gpushm::domains {

namespace {

constexpr char short_name_mark = 'd';

/// What a predecessor has left.
struct continued_counts {
  std::uint64_t domains = 0;
  std::uint64_t segments = 0;
  std::uint64_t connections = 0;
  std::uint64_t journal_bytes = 0;

  continued_counts& operator+=(const continued_counts& more) noexcept {
    domains += more.domains;
    segments += more.segments;
    connections += more.connections;
    journal_bytes += more.journal_bytes;
    return *this;
  }
};

continued_counts counts_of(const succession::takeover_state& state) {
  continued_counts result;
  result.domains = 1;
  result.segments = static_cast<std::uint64_t>(
      std::count_if(state.state.records.begin(), state.state.records.end(), [](const auto& each) {
        return each.first.kind == core::record_kind::segment;
      }));
  result.connections = static_cast<std::uint64_t>(
      std::count_if(state.connections.begin(), state.connections.end(), [](const auto& each) {
        return !each.second.closed;
      }));
  result.journal_bytes = state.log.used_bytes();
  return result;
}

/// Returns the number of a domain in the keeper; nullopt if the text has another form.
std::optional<std::uint64_t> number_of(std::string_view short_name) {
  std::uint64_t number = 0;
  const char* const end = short_name.data() + short_name.size();
  if (!short_name.starts_with(short_name_mark)) {
    return std::nullopt;
  }
  const auto read = std::from_chars(short_name.data() + 1, end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace

hosted_broker domain_set::start(const std::string& domain) {
  // The locks of a predecessor's domains may be released later than the node's.
  if (!has_keeper_) {
    return base::retry_while_in_use(locked_until_, [&] { return start(domain, std::nullopt); });
  }
  const std::string short_name = short_name_mark + std::to_string(next_short_name_.fetch_add(1));
  const gpushm::generation first = next_first_generation();
  return base::retry_while_in_use(locked_until_, [&] {
    return start(
        domain,
        broker_detail::successor_options{
            short_name, std::nullopt, first, ledger_path_of(domain), code_, options_.return_time});
  });
}

/// A domain that has been lost with its keeper has the same name again; members still have its
/// segments, and references to them by name and generation. So each new start has a range of
/// generations of its own, counted in a file: at one start a second for two years, each of a domain
/// with a billion segments.
gpushm::generation domain_set::next_first_generation() {
  constexpr const char* operation = "count the starts of domains";
  constexpr unsigned bits_of_a_start = 30;
  constexpr std::uint64_t max_starts = max_generation >> bits_of_a_start;
  const std::string path = locks_ + "/starts";
  const std::lock_guard lock(starts_mutex_);
  const auto text = base::read_small_file(path);
  const auto starts = text ? base::number<std::uint64_t>(*text) : 0;
  if (!starts || *starts > max_starts) {
    throw error(errc::invalid_argument,
                operation,
                path,
                "it is not a number that this program has written",
                "restart this node; or remove the file once no process uses segments of this node");
  }
  base::staged_file file(operation, path);
  file.write(std::to_string(*starts + 1));
  file.commit();
  return (*starts << bits_of_a_start) + 1;
}

hosted_broker domain_set::start(const std::string& domain,
                                std::optional<broker_detail::successor_options> successors) {
  create_directory(directory_of(domain), public_mode);
  broker_options options;
  options.socket_path = directory_of(domain) + "/socket";
  options.lock_path = lock_path_of(domain);
  options.domain = domain;
  options.mode = 0666;
  options.limits = options_.limits;
  options.raise_descriptor_limit = true;
  options.accept_fake_chunks = options_.accept_fake_chunks;
  core::quotas quotas;
  {
    const std::lock_guard lock(mutex_);
    quotas = quotas_of(domain);
  }
  auto created = std::make_unique<broker_detail::running_server>(
      options,
      budget_,
      std::move(successors),
      [gate = gate_, quotas = std::move(quotas)](broker_detail::server& before_requests) {
        before_requests.post([quotas](broker_detail::hub& hub) { hub.set_quotas(quotas); });
        gate->wait();
      });
  return {created.release(), deleter_unless_continued{has_keeper_}};
}

void domain_set::continue_all(predecessor& before) {
  continued_counts continued;
  for (const auto& [short_name, from] : before) {
    if (const auto number = number_of(short_name)) {
      next_short_name_ = std::max(next_short_name_.load(), *number + 1);
    }
  }
  for (auto& [short_name, from] : before) {
    const std::string domain = from.broker.domain;
    const auto numbers = from.stored;
    const std::uint64_t journal = from.log.sequence();
    const continued_counts counts = counts_of(from);
    try {
      check_name(domain);
      if (from.broker.socket_path != directory_of(domain) + "/socket" || open_.contains(domain)) {
        throw error(errc::invalid_argument,
                    "continue domain",
                    domain,
                    "it was served at " + from.broker.socket_path,
                    "start with the run directory of the last process");
      }
      hosted_broker serving = start(
          domain,
          broker_detail::successor_options{
              short_name, std::move(from), 1, ledger_path_of(domain), code_, options_.return_time});
      open_[domain].serving = std::move(serving);
      continued += counts;
    } catch (const error& why) {
      // Only a state that is wrong. Anything else, such as a lack of memory, threads or
      // descriptors, ends this process with everything in the keeper: the next one tries again.
      if (why.code() != errc::invalid_argument) {
        throw;
      }
      base::log(
          log_level::error,
          fmt::format(
              "domain {} cannot be continued, its clients connect again: {}", domain, why.what()));
      if (auto store = keeper::descriptor_store::from_environment()) {
        succession::descriptor_shelf(std::move(*store), short_name, numbers).end(journal);
      }
    }
  }
  if (continued.domains != 0) {
    base::log(log_level::info,
              fmt::format("continues the last broker: domains {}, segments {}, connections {}, "
                          "journals {}",
                          continued.domains,
                          continued.segments,
                          continued.connections,
                          base::size_text(continued.journal_bytes)));
  }
}

}  // namespace gpushm::domains
