// SPDX-License-Identifier: Apache-2.0
// Prefetching: requests in advance what opens will need from the broker.
#include <algorithm>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/report/log.hpp"
#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "client/segment/client_impl.hpp"
#include "client/session/reply_check.hpp"

namespace gpushm::client_detail {

namespace {

constexpr std::size_t chunks_per_batch = wire::max_batch;

/// True if one packet has everything that an open maps, and if the cache keeps the mapping.
bool can_be_prefetched(const wire::segment& segment, bool any_lifetime = false) {
  const bool has_name =
      segment.state == segment_state::live || segment.state == segment_state::exporter_gone;
  return segment.published && has_name &&
         (any_lifetime || segment.lifetime == lifetime::persistent) &&
         !base::ends_with_creator(segment.backend) && segment.backend != backend::signals &&
         segment.backend != backend::descriptor && segment.chunk_count <= chunks_per_batch &&
         !base::is_versioned_name(segment.name);  // it would keep its version
}

/// The broker has no room: it would also refuse further requests.
bool is_full(errc why) {
  return why == errc::share_exceeded || why == errc::out_of_memory ||
         why == errc::too_many_requests || why == errc::too_many_descriptors;
}

/// Requested: replies that depend on an exporter are not waited for.
std::stop_token no_wait() {
  std::stop_source stop;
  stop.request_stop();
  return stop.get_token();
}

}  // namespace

std::size_t client_impl::prefetch(std::string_view prefix, steady_time deadline) {
  check_usable("prefetch", prefix);
  const subject about{"prefetch", prefix};
  const auto connected = broker();
  std::size_t count = 0;
  std::vector<std::string> batch;
  std::size_t chunks = 0;
  bool full = false;
  const auto fetch = [&] {
    if (!batch.empty()) {
      full = !prefetch_batch(connected, std::exchange(batch, {}), about, deadline, count);
      chunks = 0;
    }
  };
  for (std::string after; !full;) {
    const reply got = connected->request(wire::list{std::string(prefix), after}, about, deadline);
    const auto* page = std::get_if<wire::listing>(&got.body);
    if (page == nullptr ||
        (page->more && (page->segments.empty() || page->segments.back().name <= after))) {
      throw unexpected_reply(about);  // would loop forever
    }
    for (const wire::segment& each : page->segments) {
      if (full || !can_be_prefetched(each)) {
        continue;
      }
      if (batch.size() == names_per_batch || chunks + each.chunk_count > chunks_per_batch) {
        fetch();
      }
      if (leases_->should_prefetch(*connected, each.generation, chunks + each.chunk_count)) {
        batch.push_back(each.name);
        chunks += each.chunk_count;
      }
    }
    if (!page->more) {
      break;
    }
    after = page->segments.back().name;
  }
  if (!full) {
    fetch();
  }
  return count;
}

/// Returns false if there is no room for more.
bool client_impl::prefetch_batch(const std::shared_ptr<connection>& connected,
                                 const std::vector<std::string>& names,
                                 const subject& about,
                                 steady_time deadline,
                                 std::size_t& count) {
  return keep_prefetched(
      connected, connected->open_many({names, 0, 0}, about, deadline), names, false, about, count);
}

bool client_impl::keep_prefetched(const std::shared_ptr<connection>& connected,
                                  std::vector<reply> replies,
                                  std::span<const std::string> names,
                                  bool any_lifetime,
                                  const subject& about,
                                  std::size_t& count) {
  bool has_room = true;
  for (reply& got : replies) {
    if (const auto* refused = std::get_if<wire::failure>(&got.body)) {
      has_room = has_room && !is_full(refused->code);  // otherwise the segment ended meanwhile
      continue;
    }
    auto* const opened = std::get_if<wire::opened>(&got.body);
    if (opened == nullptr || opened->index >= names.size()) {
      throw unexpected_reply(about);
    }
    check_opened(*opened, got.descriptors.size(), names[opened->index], 0);
    // Since the listing, another segment may have taken the name; and some descriptors may be
    // missing.
    if (!can_be_prefetched(opened->segment, any_lifetime) ||
        got.descriptors.size() != opened->segment.chunk_count) {
      continue;
    }
    lease_table::prefetched result;
    result.lease = leases_->take(connected,
                                 {std::move(opened->segment),
                                  std::move(opened->metadata),
                                  std::move(opened->ticket),
                                  opened->receipt},
                                 got.granted,
                                 about.operation);
    result.bytes = std::move(opened->chunk_bytes);
    result.files = std::move(got.descriptors);
    count += leases_->put(std::move(result)) ? 1U : 0U;
  }
  return has_room;
}

void client_impl::prefetch_names() {
  const subject about{"connect", options_.socket_path};
  const std::span<const std::string> wanted_names = options_.prefetch;
  const auto deadline = request_deadline();
  std::size_t count = 0;
  try {
    const auto connected = broker();
    bool has_room = true;
    for (std::size_t first = 0; has_room && first < wanted_names.size(); first += names_per_batch) {
      const auto names =
          wanted_names.subspan(first, std::min(names_per_batch, wanted_names.size() - first));
      auto replies = first == 0 ? connected->take_early(about, deadline) : std::nullopt;
      if (!replies) {
        replies =
            connected->open_many({{names.begin(), names.end()}, 0, 0}, about, deadline, no_wait());
      }
      has_room = keep_prefetched(connected, *std::move(replies), names, true, about, count);
    }
  } catch (const error& why) {
    if (why.code() == errc::protocol_error || why.code() == errc::forked) {
      throw;
    }
    base::log(log_level::debug, why.what());
  }
}

}  // namespace gpushm::client_detail
