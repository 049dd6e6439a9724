// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/own_table.hpp"

#include <linux/close_range.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "base/process/own_table.hpp"
#include "base/process/thread.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::succession {

namespace {

/// Gives this thread a table with the standard streams and `kept`. Returns false if the kernel
/// refuses.
bool unshare_table(std::vector<int> kept) noexcept {
  const auto close_from = [](unsigned first, unsigned last, unsigned flags) {
    return first > last || ::syscall(SYS_close_range, first, last, flags) == 0;
  };
  std::sort(kept.begin(), kept.end());
  const auto end = static_cast<unsigned>(std::max(kept.empty() ? 0 : kept.back(), 2)) + 1;
  if (!close_from(end, ~0U, CLOSE_RANGE_UNSHARE)) {
    // Linux before 5.9, or a system call filter.
    return false;
  }
  unsigned first = 3;
  for (const int each : kept) {
    const auto number = static_cast<unsigned>(each);
    if (number < first) {
      continue;
    }
    if (first < number && !close_from(first, number - 1, 0)) {
      return false;
    }
    first = number + 1;
  }
  return true;
}

bool is_socket(int file) noexcept {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/// Opened once.
class latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  /// Blocks until it is open.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

}  // namespace

bool start_with_own_table(const char* name,
                          std::vector<int> kept,
                          const std::function<void()>& begin,
                          std::function<void()> run) {
  struct start {
    latch done;
    bool has_own_table = false;
  };
  const auto begun = std::make_shared<start>();
  base::start_thread(name, [begun, numbers = std::move(kept), begin, what = std::move(run)] {
    begun->has_own_table = unshare_table(numbers);
    begin();
    begun->done.open();
    what();
  }).detach();
  begun->done.wait();
  return begun->has_own_table;
}

void close_apart(std::vector<base::unique_fd> files) noexcept {
  if (files.empty()) {
    return;
  }
  try {
    // What frees memory comes first.
    const auto first_socket = std::stable_partition(
        files.begin(), files.end(), [](const auto& each) { return !is_socket(each.get()); });
    const auto others = static_cast<std::size_t>(first_socket - files.begin());
    std::vector<int> numbers(files.size());
    std::transform(
        files.begin(), files.end(), numbers.begin(), [](const auto& each) { return each.get(); });
    // Only the thread's close may be the last one. What it does not close ends with its table, when
    // it exits: SO_LINGER has no effect on a thread that exits, so that no number of sockets leaves
    // threads.
    const auto is_closed_here = std::make_shared<latch>();
    const auto closes = std::make_shared<std::size_t>(others);
    const bool is_apart = start_with_own_table(
        "gpushm-leftover",
        numbers,
        [] {},
        [numbers, closes, is_closed_here] {
          is_closed_here->wait();
          const base::own_table_scope own;
          for (std::size_t i = 0; i != *closes; ++i) {
            ::close(numbers[i]);
          }
        });
    if (is_apart) {
      files.clear();
    } else {
      *closes = numbers.size();
    }
    for (base::unique_fd& each : files) {  // the thread closes them, in this table
      static_cast<void>(each.release());
    }
    is_closed_here->open();
  } catch (const std::exception& why) {
    log_about_members(log_level::warning, why.what());
    for (base::unique_fd& each : files) {
      static_cast<void>(each.release());
    }
  }
}

}  // namespace gpushm::succession
