// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/timeline_poller.hpp"

#include <algorithm>

#include "base/process/deadline.hpp"

namespace gpushm::client_detail {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

namespace {

/// The pause between looks at words that streams signal, and at words that the thread cannot sleep
/// on.
constexpr microseconds shortest_pause{50};
constexpr milliseconds longest_pause{1};
/// The sleep without watches: the kernel does not accept the clock's end.
constexpr milliseconds longest_idle{3'600'000};

}  // namespace

void timeline_poller::watch(std::uint64_t key,
                            watched_timeline timeline,
                            const std::stop_token& stop) {
  check_usable("watch");
  auto added = std::make_unique<entry>(std::move(timeline), steady_clock::now());
  added->on_stop.emplace(stop, request{this, &added->is_stopped});
  {
    const std::lock_guard lock(mutex_);
    std::swap(watches_[key], added);
  }
  notify();
}

void timeline_poller::remove(std::uint64_t key) {
  check_usable("remove");
  std::unique_ptr<entry> removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (const auto at = watches_.find(key); at != watches_.end()) {
    removed = std::move(at->second);
    watches_.erase(at);
  }
}

void timeline_poller::wake() noexcept {
  is_woken_.store(true);
  notify();
}

/// One word is left for `wakes_`. A word of several watches is slept on once.
void timeline_poller::add_sleep(finding& finding,
                                const entry& entry,
                                std::uint64_t seen,
                                time_point now) noexcept {
  const std::atomic<std::uint64_t>* const word = &entry.what.on.word();
  const auto end = sleep_.begin() + static_cast<std::ptrdiff_t>(finding.words);
  if (entry.what.on.is_signaled_by_streams()) {
    const nanoseconds usual = (now - entry.since) / 8;
    finding.next_look = std::min<time_point>(
        finding.next_look, now + std::clamp<nanoseconds>(usual, shortest_pause, longest_pause));
  } else if (std::any_of(sleep_.begin(), end, [&](const auto& each) { return each.at == word; })) {
    return;
  } else if (can_sleep_on_many_ && finding.words + 1 < sleep_.size()) {
    sleep_[finding.words++] = {word, seen};
  } else {
    finding.next_look = std::min<time_point>(finding.next_look, now + longest_pause);
  }
}

timeline_poller::finding timeline_poller::look(std::span<std::uint64_t> due,
                                               time_point now,
                                               std::vector<std::unique_ptr<entry>>& ended) {
  const std::lock_guard lock(mutex_);
  finding finding{0, 0, now + (watches_.empty() ? longest_idle : sync::longest_sleep)};
  for (auto at = watches_.begin(); at != watches_.end() && finding.due != due.size();) {
    const entry& each = *at->second;
    const std::uint64_t seen = each.what.on.word().load(std::memory_order_relaxed);
    if (!each.is_due(now)) {  // after `seen`: a signal in between ends the sleep at once
      finding.next_look = std::min(finding.next_look, each.what.look_again);
      add_sleep(finding, each, seen, now);
      ++at;
      continue;
    }
    ended.push_back(std::move(at->second));
    due[finding.due++] = at->first;
    at = watches_.erase(at);
  }
  return finding;
}

/// A word whose watch is removed meanwhile may be unmapped: the kernel reads it once, when the
/// sleep begins, and then reports that instead of sleeping.
void timeline_poller::sleep_on_words(std::uint64_t wakes,
                                     const finding& finding,
                                     time_point now) noexcept {
  const std::span words(sleep_.data(), finding.words + 1);
  words.back() = {&wakes_, wakes};
  if (words.size() == 1) {
    sync::sleep_on(wakes_, wakes, finding.next_look - now);
    return;
  }
  if (!sync::sleep_on_any(words, finding.next_look)) {
    can_sleep_on_many_ = false;
  }
}

std::size_t timeline_poller::wait(std::span<std::uint64_t> due, time_point deadline) {
  check_usable("wait");
  std::vector<std::unique_ptr<entry>> ended;  // destroyed without the lock
  for (;;) {
    const std::uint64_t wakes = wakes_.load();
    const auto now = steady_clock::now();
    finding finding = look(due, now, ended);
    if (finding.due != 0 || now >= deadline || is_woken_.exchange(false)) {
      return finding.due;
    }
    finding.next_look = std::min(finding.next_look, deadline);
    sleep_on_words(wakes, finding, now);
  }
}

}  // namespace gpushm::client_detail
