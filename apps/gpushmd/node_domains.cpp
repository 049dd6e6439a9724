// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/node_domains.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/process/deadline.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

using gpushm::domains::reading;

/// Limits calls whose callers must not wait long: metrics, and checks.
constexpr std::chrono::milliseconds read_timeout{1'000};
/// Between checks while not every domain is served, at most.
constexpr std::chrono::milliseconds retry_interval{500};

}  // namespace

node_domains::node_domains(options chosen)
    : options_(std::move(chosen)),
      broker_(options_.run_dir),
      wanted_(options_.domains.begin(), options_.domains.end()) {
  for (const std::string& domain : options_.domains) {
    served_at_.emplace(domain, std::chrono::steady_clock::now());
  }
  checker_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      check();
      std::unique_lock lock(mutex_);
      const auto interval = problem_.empty() ? options_.check_interval
                                             : std::min(options_.check_interval, retry_interval);
      stopping_.wait_for(lock, stop, interval, [] { return false; });
    }
  });
}

node_domains::~node_domains() {
  checker_.request_stop();
}

bool node_domains::is_configured(const std::string& domain) const {
  return std::find(options_.domains.begin(), options_.domains.end(), domain) !=
         options_.domains.end();
}

std::set<std::string> node_domains::wanted() const {
  const std::lock_guard lock(mutex_);
  return wanted_;
}

base::busy_names::hold node_domains::take(const std::string& domain) {
  base::busy_names::hold taken = changing_.take(domain, base::deadline_after(options_.timeout));
  if (!taken) {
    throw error(errc::timed_out,
                "change domain",
                domain,
                "another call still opens or closes it",
                "repeat it; see the log of gpushm-brokerd if this lasts");
  }
  return taken;
}

std::string node_domains::open(const std::string& domain) {
  const base::busy_names::hold change = take(domain);
  std::string directory = broker_.open(domain, options_.timeout);
  const std::lock_guard lock(mutex_);
  wanted_.insert(domain);
  return directory;
}

void node_domains::close(const std::string& domain) {
  if (is_configured(domain)) {
    throw error(errc::invalid_argument,
                "close domain",
                domain,
                "it is a configured domain and always exists",
                "remove it from broker.domains");
  }
  const base::busy_names::hold change = take(domain);
  {
    const std::lock_guard lock(mutex_);
    wanted_.erase(domain);
  }
  // A broker that has been away for long is not waited for by each pod that ends.
  broker_.close(domain, unserved().empty() ? options_.timeout : read_timeout);
}

std::vector<std::string> node_domains::list() const {
  std::vector<std::string> names;
  for (reading& each : broker_.read(options_.timeout)) {
    if (!is_configured(each.domain)) {
      names.push_back(std::move(each.domain));
    }
  }
  return names;
}

metrics::broker_reading node_domains::read_broker() const {
  // One deadline for all: the thread that serves metrics also answers the probes.
  const auto deadline = base::deadline_after(read_timeout);
  std::set<std::string> missing = wanted();
  metrics::broker_reading result;
  try {
    for (reading& each : broker_.read(base::time_left(deadline))) {
      missing.erase(each.domain);
      if (each.open || is_configured(each.domain)) {
        result.domains.push_back(std::move(each));
      }
    }
    result.replied = true;
    result.facts = broker_.read_broker(base::time_left(deadline));
    for (const reading& each : result.domains) {
      if (each.open) {
        result.statistics.emplace(each.domain,
                                  broker_.read_statistics(each.domain, base::time_left(deadline)));
      }
    }
  } catch (const error& why) {  // reports what has been read
    base::log(log_level::debug, why.what());
  }
  for (const std::string& each : missing) {
    reading& one = result.domains.emplace_back();
    one.domain = each;
  }
  return result;
}

std::string node_domains::not_ready() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::map<std::string, std::string> node_domains::unserved() const {
  const std::lock_guard lock(mutex_);
  return unserved_;
}

void node_domains::judge(const std::map<std::string, std::string>& reasons) {
  const auto now = std::chrono::steady_clock::now();
  std::map<std::string, std::string> unserved;
  for (auto& [domain, served_at] : served_at_) {
    const auto reason = reasons.find(domain);
    if (reason == reasons.end()) {
      served_at = now;
    } else if (now - served_at >= options_.grace) {
      unserved.emplace(domain, fmt::format("domain {} is not served: {}", domain, reason->second));
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [domain, reason] : unserved) {
    if (!unserved_.contains(domain)) {
      base::log(log_level::warning, fmt::format("shares are unhealthy: {}", reason));
    }
  }
  for (const auto& [domain, reason] : unserved_) {
    if (!unserved.contains(domain)) {
      base::log(log_level::info, fmt::format("shares of domain {} are healthy again", domain));
    }
  }
  unserved_ = std::move(unserved);
}

void node_domains::note(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (problem_ != problem) {
    base::log(problem.empty() ? log_level::info : log_level::error,
              problem.empty() ? "all domains are served" : problem);
    problem_ = problem;
  }
}

void node_domains::check() {
  std::map<std::string, std::string> reasons;
  try {
    std::set<std::string> missing = wanted();
    std::string problem;
    for (const reading& each : broker_.read(read_timeout)) {
      if (each.open) {
        missing.erase(each.domain);
      }
      if (each.open && !each.serving) {
        reasons.emplace(each.domain, each.problem.empty() ? "it accepts no clients" : each.problem);
      }
      if (problem.empty()) {
        problem = each.problem;
      }
    }
    for (const std::string& each : missing) {
      try {
        const base::busy_names::hold change = take(each);
        if (wanted().count(each) == 0) {
          continue;  // closed meanwhile
        }
        static_cast<void>(broker_.open(each, options_.timeout));
      } catch (const error& why) {
        problem = fmt::format("domain {} is not served: {}", each, why.what());
        reasons.emplace(each, why.what());
      }
    }
    judge(reasons);
    note(problem);
  } catch (const std::exception& why) {
    for (const std::string& domain : options_.domains) {
      reasons.emplace(domain, why.what());
    }
    judge(reasons);
    note(why.what());
  }
}

}  // namespace gpushm::agent
