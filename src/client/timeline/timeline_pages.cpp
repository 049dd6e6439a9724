// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/timeline_pages.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdio>
#include <new>
#include <numeric>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "client/session/connection.hpp"
#include "gpu/streams/retired_pages.hpp"

namespace gpushm::client_detail {

namespace {

/// Whether the kernel would open the file of a descriptor, which is open for reading only, for
/// writing.
bool may_be_opened_for_writing(int file) noexcept {
  // This thread's entry: a thread can have a descriptor table of its own.
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/thread-self/fd/%d", file);
  return static_cast<bool>(base::unique_fd(::open(path.data(), O_RDWR | O_CLOEXEC)));
}

/// The slot of the page in the broker that has its lease now.
epoch epoch_of(const mapped_page& page) {
  return page.lease().where().first->broker().epoch;
}

}  // namespace

mapped_page::mapped_page(std::shared_ptr<segment_lease> lease, int file, bool is_own)
    : lease_(std::move(lease)),
      mapping_(base::map_file(
          "timeline", file, static_cast<std::size_t>(lease_->info().allocated_bytes), is_own)),
      page_(static_cast<sync::timeline_page*>(mapping_.get().address)),
      is_own_(is_own),
      is_writable_(is_own || may_be_opened_for_writing(file)),
      registered_(std::make_unique<streams::registered_page>(page_, is_own)) {}

mapped_page::mapped_page(int file, bool is_own, std::shared_ptr<const void> keeps)
    : keeps_(std::move(keeps)),
      mapping_(base::map_file("timeline", file, sync::timeline_page_bytes, is_own)),
      page_(static_cast<sync::timeline_page*>(mapping_.get().address)),
      is_own_(is_own),
      is_writable_(true),
      registered_(std::make_unique<streams::registered_page>(page_, is_own)) {}

mapped_page::~mapped_page() {
  streams::retired_pages::of_process().add(std::move(mapping_), std::move(registered_));
}

// ---- free timelines ----

/// Collects ended timelines that no process has open.
void timeline_pages::collect_ended(own& own_state) {
  std::erase_if(own_state.ended, [&](const ended_words& each) {
    if (each.broker->may_exist(each.slot, each.generation)) {
      return false;
    }
    for (std::uint32_t i = 0; i != each.count; ++i) {
      own_state.free.push_back(each.first + i);
    }
    return true;
  });
}

/// Takes free timelines. Those of `count` > 1 must follow each other.
std::optional<std::uint32_t> timeline_pages::take_from(own& own_state, std::uint32_t count) {
  if (count == 1 && !own_state.free.empty()) {
    const std::uint32_t first = own_state.free.front();
    own_state.free.pop_front();
    return first;
  }
  std::bitset<sync::words_per_page> free;
  for (const std::uint32_t each : own_state.free) {
    free.set(each);
  }
  std::uint32_t run = 0;
  for (std::uint32_t i = 0; i != sync::words_per_page; ++i) {
    run = free.test(i) ? run + 1 : 0;
    if (run == count) {
      const std::uint32_t first = i + 1 - count;
      std::erase_if(own_state.free, [&](std::uint32_t each) { return each >= first && each <= i; });
      return first;
    }
  }
  return std::nullopt;
}

std::optional<timeline_range> timeline_pages::take_free(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  for (own& each : own_) {
    if (each.page->lease().state() != segment_state::live) {
      continue;  // lost with its broker: other processes cannot open it
    }
    auto first = take_from(each, count);
    if (!first && !each.ended.empty()) {
      collect_ended(each);
      first = take_from(each, count);
    }
    if (first) {
      return timeline_range{each.page, *first};
    }
  }
  return std::nullopt;
}

timeline_range timeline_pages::add(std::shared_ptr<mapped_page> page, std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  own& added = own_.emplace_back(own{page, {}, {}});
  added.free.resize(sync::words_per_page);
  std::iota(added.free.begin(), added.free.end(), 0U);
  // Another thread may also have added one: both are used.
  return {std::move(page), *take_from(added, count)};
}

timeline_pages::own* timeline_pages::owner_of(const timeline_range& range) noexcept {
  const auto at = std::find_if(
      own_.begin(), own_.end(), [&](const own& each) { return each.page == range.page; });
  return at == own_.end() ? nullptr : &*at;
}

void timeline_pages::release(const timeline_range& range, std::uint32_t count) noexcept {
  const std::lock_guard lock(mutex_);
  own* const own_state = owner_of(range);
  for (std::uint32_t i = 0; own_state != nullptr && i != count; ++i) {
    try {
      own_state->free.push_back(range.first + i);
    } catch (const std::bad_alloc&) {  // the timeline is not used again
      return;
    }
  }
}

void timeline_pages::end(const timeline_range& range,
                         std::uint32_t count,
                         const segment_lease& lease,
                         sync::word_kind kind) noexcept {
  for (std::uint32_t i = 0; i != count; ++i) {
    sync::timeline_writer(range.page->own_page(), range.first + i).close(kind);
  }
  const std::lock_guard lock(mutex_);
  if (own* const own_state = owner_of(range); own_state != nullptr) {
    try {
      auto [broker, slot] = lease.where();
      own_state->ended.push_back(
          {range.first, count, std::move(broker), slot, lease.info().generation});
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not used again
    }
  }
}

void timeline_pages::keep(std::shared_ptr<mapped_page> page) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    kept_.push_back(page);
  } catch (const std::bad_alloc&) {
    leak(page);
  }
}

// ---- open pages ----

std::shared_ptr<mapped_page> timeline_pages::find(const epoch& broker,
                                                  gpushm::generation generation) {
  const std::lock_guard lock(mutex_);
  for (const own& each : own_) {
    if (each.page->lease().info().generation == generation && epoch_of(*each.page) == broker) {
      return each.page;
    }
  }
  const auto at = others_.find(generation);
  auto result = at == others_.end() ? nullptr : at->second.lock();
  return result && epoch_of(*result) == broker ? result : nullptr;
}

std::shared_ptr<mapped_page> timeline_pages::remember(std::shared_ptr<mapped_page> opened) {
  const std::lock_guard lock(mutex_);
  std::erase_if(others_, [](const auto& each) { return each.second.expired(); });
  auto& place = others_[opened->lease().info().generation];
  if (auto earlier = place.lock(); earlier && epoch_of(*earlier) == epoch_of(*opened)) {
    return earlier;
  }
  place = opened;
  return opened;
}

}  // namespace gpushm::client_detail
