// SPDX-License-Identifier: Apache-2.0
#include "broker/closer.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread.hpp"

namespace gpushm::broker_detail {

/// Shared with the thread, which may outlive the closer.
struct closer::state {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<base::guarded_fd> waiting;
  bool busy = false;
  bool stopped = false;
};

closer::closer() : state_(std::make_shared<state>()) {
  base::start_thread("gpushm-closer", [shared = state_] {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->changed.wait(lock, [&] { return shared->stopped || !shared->waiting.empty(); });
      if (shared->waiting.empty()) {
        return;
      }
      auto files = std::exchange(shared->waiting, {});
      shared->busy = true;
      lock.unlock();
      files.clear();
      lock.lock();
      shared->busy = false;
      shared->changed.notify_all();
    }
  }).detach();
}

closer::~closer() {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
  state_->changed.wait_for(
      lock, close_timeout, [&] { return !state_->busy && state_->waiting.empty(); });
}

void closer::close(std::vector<base::guarded_fd> files) noexcept {
  if (files.empty()) {
    return;
  }
  try {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.insert(state_->waiting.end(),
                           std::make_move_iterator(files.begin()),
                           std::make_move_iterator(files.end()));
    state_->changed.notify_all();
  } catch (const std::bad_alloc&) {
    files.clear();
  }
}

}  // namespace gpushm::broker_detail
