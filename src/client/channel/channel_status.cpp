// SPDX-License-Identifier: Apache-2.0
#include "client/channel/channel_status.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/log.hpp"
#include "channel/table.hpp"
#include "client/channel/channel_names.hpp"
#include "client/channel/join_request.hpp"

namespace gpushm::client_detail {

namespace {

namespace names = channel_names;

std::uint64_t value_of(const sync::timeline_reader& timeline) {
  return timeline.read().value().value_or(0);
}

/// Reads a timeline of another process, which can have any value.
std::uint64_t difference(std::uint64_t value, std::uint64_t less) {
  return value - std::min(value, less);
}

/// Returns the result of `open`; nullopt if the object has gone since it was listed.
template <typename Open>
auto opened_if_there(Open&& open) -> std::optional<decltype(open())> {
  try {
    return open();
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
    return std::nullopt;
  }
}

/// Opens the newest page of a producer, even of one that has ended, if a consumer still has the
/// page.
std::shared_ptr<mapped_page> page_of_producer(timelines& timelines,
                                              std::string_view name,
                                              const std::vector<wire::segment>& segments,
                                              const wire::segment* producer) {
  if (producer != nullptr) {
    auto opened = opened_if_there(
        [&] { return timelines.open_timelines(producer->name, producer->generation, {}); });
    if (opened) {
      return opened->range.page;
    }
  }
  const std::string prefix = names::pages(name);
  std::vector<const wire::segment*> pages;
  for (const wire::segment& each : segments) {
    if (each.backend == backend::signals && each.name.starts_with(prefix)) {
      pages.push_back(&each);
    }
  }
  std::sort(pages.begin(), pages.end(), [](const auto* left, const auto* right) {
    return left->generation > right->generation;
  });
  for (const wire::segment* each : pages) {
    auto opened =
        opened_if_there([&] { return timelines.open_page(each->name, each->generation); });
    if (opened) {
      return *std::move(opened);
    }
  }
  return nullptr;
}

std::optional<gpushm_channel_consumer_info> read_consumer(timelines& timelines,
                                                          const wire::segment& listed,
                                                          const channel::table_view& table) {
  const auto opened =
      opened_if_there([&] { return timelines.open_timelines(listed.name, listed.generation, {}); });
  if (!opened || opened->count < channel::first_held_timeline) {
    return std::nullopt;
  }
  const auto request = decode_join_request(opened->lease->metadata()).value_or(join_request{});
  gpushm_channel_consumer_info result{};
  result.mode = static_cast<gpushm_consumer_mode>(request.mode);
  result.uid = listed.creator_uid;
  result.pid = listed.creator_pid;
  result.generation = listed.generation;
  const auto start = table.start_of(listed.generation);
  const auto entry = table.entry_of(listed.generation);
  result.is_admitted = start && entry && *start <= sync::max_value;
  result.start = result.is_admitted ? *start : 0;
  const auto timeline = [&](std::uint32_t index) {
    return value_of({opened->range.page->page(), opened->range.first + index});
  };
  if (result.mode == GPUSHM_CONSUMER_LATEST) {
    result.may_hold = opened->count - channel::first_held_timeline;
    for (std::uint32_t i = channel::first_held_timeline; i != opened->count; ++i) {
      const std::uint64_t item = timeline(i);
      result.holds += item == 0 ? 0 : 1;
      result.taken = std::max(result.taken, item);
    }
  } else {
    result.released = timeline(channel::released_timeline);
    result.taken = timeline(channel::taken_timeline);
  }
  // The producer's timelines after the consumer's, which are not ahead of them.
  std::uint64_t ahead = 0;
  if (result.mode == GPUSHM_CONSUMER_SHARE) {
    result.may_hold = request.depth;
    result.taken = ahead =
        entry ? value_of(table.timeline(channel::first_given_timeline + *entry)) : 0;
  } else {
    ahead = std::min(value_of(table.timeline(channel::published_timeline)),
                     value_of(table.timeline(channel::announced_timeline)));
  }
  if (result.mode != GPUSHM_CONSUMER_LATEST) {
    result.holds = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(difference(result.taken, result.released), channel::max_slots));
  }
  if (result.is_admitted) {
    result.lag =
        difference(ahead, result.mode == GPUSHM_CONSUMER_LATEST ? result.taken : result.released);
  }
  return result;
}

}  // namespace

channel_status read_channel_status(timelines& timelines, std::string_view name) {
  names::check("stat", name);
  const auto pages = timelines.client().list(std::string(name) + "/~");
  const auto at = std::find_if(pages.begin(), pages.end(), [&](const wire::segment& each) {
    return each.name == names::producer(name) && each.published;
  });
  const wire::segment* const producer = at == pages.end() ? nullptr : &*at;
  const auto page = page_of_producer(timelines, name, pages, producer);
  const auto table = page ? client_detail::table_in(*page) : std::nullopt;
  if (!table) {
    throw error(errc::no_such_segment,
                "stat",
                name,
                "no process has made a channel of this name",
                "start its producer, or see gpushm ls");
  }
  channel_status result;
  gpushm_channel_info& info = result.info;
  info.slots = table->slots();
  info.slot_bytes = table->slot_bytes();
  info.first_item = table->first_item();
  info.has_producer = producer != nullptr &&
                      !sync::is_terminal(table->timeline(channel::announced_timeline).read().word);
  info.is_closed = table->closed();
  info.is_writable = page->is_writable();
  info.producer_uid = page->lease().info().creator_uid;
  info.producer_pid = page->lease().info().creator_pid;
  const std::string prefix = names::consumers(name);
  for (const wire::segment& each : pages) {
    if (each.backend == backend::timeline && each.published && each.name.starts_with(prefix)) {
      if (const auto one = read_consumer(timelines, each, *table)) {
        result.consumers.push_back(*one);
      }
    }
  }
  // After those of the consumers, which are not ahead of them.
  info.published = value_of(table->timeline(channel::published_timeline));
  info.announced = value_of(table->timeline(channel::announced_timeline));
  info.published = std::min(info.published, info.announced);
  info.consumers = static_cast<std::uint32_t>(result.consumers.size());
  return result;
}

}  // namespace gpushm::client_detail
