// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/waiting_streams.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "gpu/driver/connections.hpp"

namespace gpushm::streams {

std::uint32_t connections_of_process() noexcept {
  const char* const text =
      std::getenv(driver::connections_variable);  // NOLINT(concurrency-mt-unsafe): as CUDA does
  return driver::connections_in(text == nullptr ? std::string_view() : std::string_view(text));
}

waiting_streams& waiting_streams::of_process() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed
  static auto* const instance = new waiting_streams(connections_of_process());
  return *instance;
}

waiting_streams::waiting_streams(std::uint32_t connections) noexcept
    : connections_(connections), limit_(driver::waiting_streams_limit(connections)) {}

void waiting_streams::drop_met(queue& waits, queue& ended) {
  const auto first_open = std::find_if(waits.begin(), waits.end(), [](const pending& each) {
    return !each.wanted.is_met_by(each.on.word().load(std::memory_order_relaxed));
  });
  ended.insert(
      ended.end(), std::make_move_iterator(waits.begin()), std::make_move_iterator(first_open));
  waits.erase(waits.begin(), first_open);
}

void waiting_streams::drop_met(queue& ended) {
  for (auto at = streams_.begin(); at != streams_.end();) {
    drop_met(at->second, ended);
    at = at->second.empty() ? streams_.erase(at) : std::next(at);
  }
}

std::optional<counted_wait> waiting_streams::add(std::uint64_t stream,
                                                 const sync::timeline_reader& reader,
                                                 const sync::condition& condition,
                                                 std::shared_ptr<const void> owner) {
  if (condition.is_met_by(reader.word().load(std::memory_order_relaxed))) {
    return counted_wait();
  }
  queue ended;  // the last owner of a page calls the driver: not with the lock held
  const std::lock_guard lock(mutex_);
  auto at = streams_.find(stream);
  if (at != streams_.end()) {
    drop_met(at->second, ended);
  } else {
    if (streams_.size() >= limit_) {
      drop_met(ended);
    }
    if (streams_.size() >= limit_) {
      return std::nullopt;
    }
    at = streams_.emplace(stream, queue()).first;
  }
  at->second.push_back({++last_number_, reader, condition, std::move(owner)});
  return counted_wait(*this, stream, last_number_);
}

void waiting_streams::cancel(std::uint64_t stream, std::uint64_t number) noexcept {
  std::shared_ptr<const void> owner;  // not destroyed with the lock held, as above
  const std::lock_guard lock(mutex_);
  const auto entry = streams_.find(stream);
  if (entry == streams_.end()) {
    return;
  }
  queue& waits = entry->second;
  const auto at = std::find_if(
      waits.begin(), waits.end(), [&](const pending& each) { return each.number == number; });
  if (at == waits.end()) {
    return;  // it was seen met
  }
  owner = std::move(at->owner);
  waits.erase(at);
  if (waits.empty()) {
    streams_.erase(entry);
  }
}

std::size_t waiting_streams::count() {
  queue ended;
  const std::lock_guard lock(mutex_);
  drop_met(ended);
  return streams_.size();
}

}  // namespace gpushm::streams
