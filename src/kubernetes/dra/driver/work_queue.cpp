// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/work_queue.hpp"

#include <utility>

namespace gpushm::dra {

work_queue::work_queue(unsigned workers) {
  workers_.reserve(workers);
  for (unsigned count = 0; count < workers; ++count) {
    workers_.emplace_back([this] { work(); });
  }
}

work_queue::~work_queue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  workers_.clear();
}

void work_queue::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void work_queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
    const std::function<void()> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next();
    lock.lock();
  }
}

}  // namespace gpushm::dra
