// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/closer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/process/thread.hpp"

namespace gpushm::broker_detail {

/// Shared with the thread, which may outlive the closer.
struct closer::state {
  std::atomic<std::uint64_t> closed = 0;  ///< files, in the order of `waiting`
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<succession::kept_fd> waiting;
  std::optional<succession::descriptor_shelf> shelf;  ///< used by the thread only
  bool keeps_copies = false;                          ///< in the keeper
  bool busy = false;
  bool stopped = false;
};

namespace {

/// Segments whose records are erased in one turn: a keeper that was stopped closes all at once.
constexpr std::size_t max_collected = 1'024;

/// Until the keeper has closed its copies: their memory would belong to no account. What remains
/// once the domain has ended is removed by `descriptor_shelf::end`.
void take_from_keeper(succession::descriptor_shelf& shelf,
                      const std::vector<succession::kept_fd>& files,
                      const std::function<bool()>& has_ended) {
  succession::retry_with_keeper(
      [&] {
        std::vector<records::descriptor_id> numbers(files.size());
        std::transform(
            files.begin(), files.end(), numbers.begin(), [](const succession::kept_fd& each) {
              return each.id;
            });
        shelf.remove_and_wait(numbers);
      },
      has_ended);
}

}  // namespace

closer::closer(std::optional<succession::descriptor_shelf> shelf)
    : state_(std::make_shared<state>()) {
  state_->shelf = std::move(shelf);
  base::start_thread("gpushm-closer", [shared = state_] {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->changed.wait(lock, [&] { return shared->stopped || !shared->waiting.empty(); });
      if (shared->waiting.empty()) {
        return;
      }
      auto files = std::exchange(shared->waiting, {});
      shared->busy = true;
      const bool removes_copies = shared->shelf && !shared->keeps_copies;
      lock.unlock();
      if (removes_copies) {
        take_from_keeper(*shared->shelf, files, [&] {
          const std::lock_guard ending(shared->mutex);
          return shared->stopped;
        });
      }
      for (succession::kept_fd& each : files) {
        each = {};
        shared->closed.fetch_add(1, std::memory_order_release);
      }
      files.clear();
      lock.lock();
      shared->busy = false;
      shared->changed.notify_all();
    }
  }).detach();
}

closer::~closer() {
  flush();
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
  state_->changed.wait_for(
      lock, close_timeout, [&] { return !state_->busy && state_->waiting.empty(); });
}

void closer::close(std::vector<succession::kept_fd> files,
                   std::shared_ptr<core::charges> held,
                   gpushm::generation generation) noexcept {
  if (files.empty()) {
    return;
  }
  try {
    std::list<freeing> charged;
    if (held && holds_charges_) {
      // `held` has the bytes of a GPU in the place of those of the host.
      const std::uint64_t bytes = held->held(core::resource::host_bytes);
      charged.push_back({given_ + held_.size() + files.size(),
                         bytes,
                         std::move(held),
                         generation,
                         std::chrono::steady_clock::now()});
    }
    held_.insert(
        held_.end(), std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
    for (const freeing& each : charged) {
      freeing_bytes_ += each.bytes;
    }
    held_charges_.splice(held_charges_.end(), charged);
  } catch (const std::bad_alloc&) {
    files.clear();
  }
}

void closer::drop(std::list<freeing>& freeings) noexcept {
  for (const freeing& each : freeings) {
    freeing_bytes_ -= each.bytes;
  }
  freeings.clear();
}

std::list<closer::freeing> closer::take_closed() noexcept {
  const std::uint64_t closed = state_->closed.load(std::memory_order_acquire);
  std::list<freeing> done;
  for (std::size_t some = max_collected;
       some != 0 && !freeing_.empty() && freeing_.front().end <= closed;
       --some) {
    done.splice(done.end(), freeing_, freeing_.begin());
  }
  return done;
}

void closer::end_charges() noexcept {
  holds_charges_ = false;
  drop(held_charges_);
  drop(freeing_);
}

void closer::leave_to_successor() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->keeps_copies = true;
}

void closer::flush() noexcept {
  if (held_.empty()) {
    return;
  }
  try {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.insert(state_->waiting.end(),
                           std::make_move_iterator(held_.begin()),
                           std::make_move_iterator(held_.end()));
    state_->changed.notify_all();
    given_ += held_.size();
    freeing_.splice(freeing_.end(), held_charges_);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): closed here
  }
  held_.clear();
  drop(held_charges_);
}

}  // namespace gpushm::broker_detail
