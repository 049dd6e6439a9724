// SPDX-License-Identifier: Apache-2.0
#include "client/offers.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>

#include "base/exporter_bound.hpp"
#include "client/answer_check.hpp"
#include "client/remote_ticket.hpp"
#include "memory/remote_memory.hpp"

namespace gpushm::detail {

namespace {

/// The offers of this process that are mapped and not settled.
struct offers_under_way {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::uint64_t> numbers;
  std::uint64_t last = 0;
};
offers_under_way& under_way() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, opens may outlive main
  static auto* const made = new offers_under_way;
  return *made;
}

}  // namespace

void offers::map(answer offer, std::string_view name) noexcept {
  try {
    if (under_way_ == 0) {
      offers_under_way& all = under_way();
      const std::lock_guard lock(all.mutex);
      all.numbers.insert(all.last + 1);
      under_way_ = ++all.last;
    }
    entry made;
    try {
      try_to_map(made, std::move(offer), name);
    } catch (...) {
      made.failure = std::current_exception();
    }
    if (made.region || made.failure) {
      all_.push_back(std::move(made));
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is mapped when it is needed
  }
}

void offers::try_to_map(entry& made, answer offer, std::string_view name) const {
  auto& what = std::get<wire::waiting>(offer.body);
  const wire::opened as_opened{what.index,
                               std::move(*what.segment),
                               {},
                               std::move(what.chunk_bytes),
                               std::move(what.ticket)};
  check_opened(as_opened, offer.descriptors.size(), name, options_.expected_size_bytes);
  if (!base::is_exporter_bound(as_opened.segment.backend)) {
    return;
  }
  made.generation = as_opened.segment.generation;
  made.ticket = as_opened.ticket;
  const auto memory = remote_for(as_opened.segment, as_opened.ticket);
  const bool whole = memory.kind != backend::cuda_pool || !offer.descriptors.empty();
  if (!whole || memory::is_own(memory)) {
    return;
  }
  const driver::gpu& user = memory::gpu_for_open(memory.device, options_.device);
  made.user = user.id.text();
  made.region = memory::open_remote(
      name,
      memory,
      offer.descriptors.empty() ? base::guarded_fd() : std::move(offer.descriptors.front()),
      user);
}

void offers::settle(const std::vector<gpushm::generation>& granted) noexcept {
  all_.remove_if([&](const entry& each) {
    return std::find(granted.begin(), granted.end(), each.generation) == granted.end();
  });
  if (under_way_ != 0) {
    offers_under_way& all = under_way();
    const std::lock_guard lock(all.mutex);
    all.numbers.erase(std::exchange(under_way_, 0));
    all.changed.notify_all();
  }
}

std::shared_ptr<memory::region> offers::take(const segment_lease& lease, const driver::gpu& user) {
  const auto at = std::find_if(all_.begin(), all_.end(), [&](const entry& each) {
    return each.generation == lease.info().generation && each.ticket == lease.ticket();
  });
  if (at == all_.end()) {
    return nullptr;
  }
  entry taken = std::move(*at);
  all_.erase(at);
  if (taken.failure) {
    std::rethrow_exception(taken.failure);
  }
  return taken.user == user.id.text() ? std::move(taken.region) : nullptr;
}

bool offers::wait_for_others(steady_time deadline) {
  offers_under_way& all = under_way();
  std::unique_lock lock(all.mutex);
  const std::uint64_t last = all.last;
  if (all.numbers.empty() || std::chrono::steady_clock::now() >= deadline) {
    return false;
  }
  return all.changed.wait_until(
      lock, deadline, [&] { return all.numbers.empty() || *all.numbers.begin() > last; });
}

}  // namespace gpushm::detail
