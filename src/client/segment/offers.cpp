// SPDX-License-Identifier: Apache-2.0
#include "client/segment/offers.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "base/segments/exporter_bound.hpp"
#include "client/segment/remote_ticket.hpp"
#include "client/session/reply_check.hpp"
#include "gpu/memory/sources/remote_memory.hpp"

namespace gpushm::client_detail {

namespace {

/// Poll interval for the end of other threads' offers. A condition variable has a lock, which a
/// forked child may find locked.
constexpr std::chrono::milliseconds offer_poll{1};

/// The offers of this process that are mapped and not settled.
struct pending_offers {
  base::fork_safe_mutex mutex;
  std::set<std::uint64_t> numbers;
  std::uint64_t last = 0;
  std::uint64_t created_in = base::fork_generation();

  /// Called with the lock held. A forked child has none of the parent's pending offers.
  void drop_parents_offers() {
    if (base::is_forked_child_of(created_in)) {
      numbers.clear();
      created_in = base::fork_generation();
    }
  }
};
pending_offers& pending() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, opens may outlive main
  static auto* const result = new pending_offers;
  return *result;
}
// Created when the library is loaded: a forked child must not find it half constructed.
[[maybe_unused]] const pending_offers& created_at_load = pending();

}  // namespace

void offers::map(reply offer, std::string_view name) noexcept {
  try {
    if (pending_number_ == 0) {
      pending_offers& all = pending();
      const std::lock_guard lock(all.mutex);
      all.drop_parents_offers();
      all.numbers.insert(all.last + 1);
      pending_number_ = ++all.last;
    }
    entry result;
    try {
      try_to_map(result, std::move(offer), name);
    } catch (...) {
      result.failure = std::current_exception();
    }
    if (result.region || result.failure) {
      all_.push_back(std::move(result));
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is mapped later, if needed
  }
}

void offers::try_to_map(entry& result, reply offer, std::string_view name) const {
  auto& waiting = std::get<wire::waiting>(offer.body);
  const wire::opened as_opened{waiting.index,
                               std::move(*waiting.segment),
                               {},
                               std::move(waiting.chunk_bytes),
                               std::move(waiting.ticket)};
  check_opened(as_opened, offer.descriptors.size(), name, options_.expected_size_bytes);
  if (!base::is_exporter_bound(as_opened.segment.backend)) {
    return;
  }
  result.generation = as_opened.segment.generation;
  result.ticket = as_opened.ticket;
  const auto memory = remote_for(as_opened.segment, as_opened.ticket);
  const bool whole = memory.kind != backend::cuda_pool || !offer.descriptors.empty();
  if (!whole || memory::is_own(memory)) {
    return;
  }
  const driver::gpu& user = memory::gpu_for_open(memory.device, options_.device);
  result.user = user.id.text();
  result.region = memory::open_remote(
      name,
      memory,
      offer.descriptors.empty() ? base::guarded_fd() : std::move(offer.descriptors.front()),
      user);
}

void offers::settle(const std::vector<gpushm::generation>& granted) noexcept {
  all_.remove_if([&](const entry& each) {
    return std::find(granted.begin(), granted.end(), each.generation) == granted.end();
  });
  if (pending_number_ != 0) {
    pending_offers& all = pending();
    const std::lock_guard lock(all.mutex);
    all.numbers.erase(std::exchange(pending_number_, 0));
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
  pending_offers& offers = pending();
  std::optional<std::uint64_t> last;
  for (;;) {
    {
      const std::lock_guard lock(offers.mutex);
      offers.drop_parents_offers();
      if (offers.numbers.empty() || (last && *offers.numbers.begin() > *last)) {
        return last.has_value();  // true if there was any to wait for
      }
      if (!last) {
        last = offers.last;
      }
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    base::pause_before_retry(offer_poll);
  }
}

}  // namespace gpushm::client_detail
