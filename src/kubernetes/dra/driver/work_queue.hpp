// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gpushm::dra {

/// Runs blocking work outside of gRPC's threads.
///
/// Thread-safety: shared objects: safe.
class work_queue {
 public:
  explicit work_queue(unsigned workers);
  work_queue(const work_queue&) = delete;
  work_queue& operator=(const work_queue&) = delete;
  /// Runs queued work first.
  ~work_queue();

  /// `work` must not throw.
  void run(std::function<void()> work);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::jthread> workers_;
};

}  // namespace gpushm::dra
