// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/request_counts.hpp"

#include <algorithm>
#include <variant>

namespace gpushm::broker_detail {

namespace {

constexpr std::array<std::string_view, request_kinds> names{
    "other",   "connect",        "hello",          "reserve",      "attach",
    "publish", "open",           "open_many",      "fetch_chunks", "release",
    "remove",  "list",           "stat",           "subscribe",    "unsubscribe",
    "bye",     "confirmed",      "report",         "unfence",      "keep",
    "cancel",  "create_version", "change_version", "resolve",      "list_versions"};

struct kind_visitor {
  using kind = request_kind;
  kind operator()(const wire::hello& /*message*/) const noexcept { return kind::hello; }
  kind operator()(const wire::reserve& /*message*/) const noexcept { return kind::reserve; }
  kind operator()(const wire::attach& /*message*/) const noexcept { return kind::attach; }
  kind operator()(const wire::publish& /*message*/) const noexcept { return kind::publish; }
  kind operator()(const wire::open& /*message*/) const noexcept { return kind::open; }
  kind operator()(const wire::open_many& /*message*/) const noexcept { return kind::open_many; }
  kind operator()(const wire::fetch_chunks& /*message*/) const noexcept {
    return kind::fetch_chunks;
  }
  kind operator()(const wire::release& /*message*/) const noexcept { return kind::release; }
  kind operator()(const wire::remove& /*message*/) const noexcept { return kind::remove; }
  kind operator()(const wire::list& /*message*/) const noexcept { return kind::list; }
  kind operator()(const wire::stat& /*message*/) const noexcept { return kind::stat; }
  kind operator()(const wire::subscribe& /*message*/) const noexcept { return kind::subscribe; }
  kind operator()(const wire::unsubscribe& /*message*/) const noexcept { return kind::unsubscribe; }
  kind operator()(const wire::bye& /*message*/) const noexcept { return kind::bye; }
  kind operator()(const wire::confirmed& /*message*/) const noexcept { return kind::confirmed; }
  kind operator()(const wire::report& /*message*/) const noexcept { return kind::report; }
  kind operator()(const wire::unfence& /*message*/) const noexcept { return kind::unfence; }
  kind operator()(const wire::keep& /*message*/) const noexcept { return kind::keep; }
  kind operator()(const wire::cancel& /*message*/) const noexcept { return kind::cancel; }
  kind operator()(const wire::create_version& /*message*/) const noexcept {
    return kind::create_version;
  }
  kind operator()(const wire::change_version& /*message*/) const noexcept {
    return kind::change_version;
  }
  kind operator()(const wire::resolve& /*message*/) const noexcept { return kind::resolve; }
  kind operator()(const wire::list_versions& /*message*/) const noexcept {
    return kind::list_versions;
  }
  template <typename Reply>
  kind operator()(const Reply& /*message*/) const noexcept {
    return kind::other;
  }
};

}  // namespace

std::string_view to_string(request_kind kind) noexcept {
  return names.at(static_cast<std::size_t>(kind));
}

request_kind kind_of(const wire::body& message) noexcept {
  return std::visit(kind_visitor{}, message);
}

void request_counts::refused(request_kind kind, errc why) noexcept {
  const auto code = static_cast<std::size_t>(why);
  if (code < codes) {
    add(refused_[static_cast<std::size_t>(kind)][code]);
  }
}

void request_counts::handled(request_kind request_kind, std::chrono::nanoseconds took) noexcept {
  const auto kind = static_cast<std::size_t>(request_kind);
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 0));
  const auto* const bound = std::lower_bound(
      base::request_latency_bounds_ns.begin(), base::request_latency_bounds_ns.end(), ns);
  add(latency_[kind][static_cast<std::size_t>(bound - base::request_latency_bounds_ns.begin())]);
  add(latency_sum_ns_[kind], ns);
}

std::vector<request_counts::refusal> request_counts::refusals() const {
  std::vector<refusal> result;
  for (std::size_t kind = 0; kind < request_kinds; ++kind) {
    for (std::size_t code = 0; code < codes; ++code) {
      if (const auto count = refused_[kind][code].load(std::memory_order_relaxed); count != 0) {
        result.push_back({static_cast<request_kind>(kind), static_cast<errc>(code), count});
      }
    }
  }
  return result;
}

std::vector<request_counts::latency> request_counts::latencies() const {
  std::vector<latency> result;
  for (std::size_t kind = 0; kind < request_kinds; ++kind) {
    latency one{static_cast<request_kind>(kind), {}, 0};
    bool any = false;
    for (std::size_t i = 0; i < one.counts.size(); ++i) {
      one.counts.at(i) = latency_[kind][i].load(std::memory_order_relaxed);
      any = any || one.counts.at(i) != 0;
    }
    if (any) {
      one.sum_ns = latency_sum_ns_[kind].load(std::memory_order_relaxed);
      result.push_back(one);
    }
  }
  return result;
}

}  // namespace gpushm::broker_detail
