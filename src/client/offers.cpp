// SPDX-License-Identifier: Apache-2.0
#include "client/offers.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/deadline.hpp"
#include "base/exporter_bound.hpp"
#include "base/fork_guard.hpp"
#include "base/syscall.hpp"
#include "client/answer_check.hpp"
#include "client/remote_ticket.hpp"
#include "memory/remote_memory.hpp"

namespace gpushm::detail {

namespace {

/// How soon the end of others' offers is seen. A condition variable has a lock that a forked child
/// may find taken.
constexpr std::chrono::milliseconds look_again{1};

/// The offers of this process that are mapped and not settled.
struct offers_under_way {
  base::fork_safe_mutex mutex;
  std::set<std::uint64_t> numbers;
  std::uint64_t last = 0;
  std::uint64_t made_in = base::fork_generation();

  /// With the lock. What was under way in the parent is not in a forked child.
  void forget_the_parents() {
    if (base::is_forked_child_of(made_in)) {
      numbers.clear();
      made_in = base::fork_generation();
    }
  }
};
offers_under_way& under_way() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, opens may outlive main
  static auto* const made = new offers_under_way;
  return *made;
}
// Made when the library is loaded: a forked child must not find it half made.
[[maybe_unused]] const offers_under_way& made_at_load = under_way();

}  // namespace

void offers::map(answer offer, std::string_view name) noexcept {
  try {
    if (under_way_ == 0) {
      offers_under_way& all = under_way();
      const std::lock_guard lock(all.mutex);
      all.forget_the_parents();
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
  std::optional<std::uint64_t> last;
  for (;;) {
    {
      const std::lock_guard lock(all.mutex);
      all.forget_the_parents();
      if (all.numbers.empty() || (last && *all.numbers.begin() > *last)) {
        return last.has_value();  // there was something to wait for
      }
      if (!last) {
        last = all.last;
      }
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    base::pause_before_retry(look_again);
  }
}

}  // namespace gpushm::detail
