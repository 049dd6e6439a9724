// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "base/process/wakeup.hpp"

namespace gpushm::client_detail {

/// How long a signaler that has executed another program may still write: nothing proves its end
/// (the broker's default, decision 19).
inline constexpr std::chrono::milliseconds end_of_executed{5'000};

/// Ends the timelines of processes that have died, as a broker would: after the fence (decision
/// 19), the end of the process and of its life pipe. One thread, as long as an object exists.
///
/// Thread-safety: distinct objects: safe; shared objects: safe. Not for forked children.
class signaler_watch {
 public:
  /// The page that ends with one process.
  struct signaler {
    base::guarded_fd process;                      ///< a pidfd
    base::guarded_fd life;                         ///< the read end of its life pipe
    std::shared_ptr<const base::guarded_fd> page;  ///< open for writing
  };

  /// Throws too_many_descriptors, system_error.
  signaler_watch();
  signaler_watch(const signaler_watch&) = delete;
  signaler_watch& operator=(const signaler_watch&) = delete;
  ~signaler_watch();

  /// Returns the number for `remove`.
  [[nodiscard]] std::uint64_t add(signaler signaler);
  /// Removes a signaler: its end no longer has an effect. Does not block.
  void remove(std::uint64_t number) noexcept;

 private:
  struct watched {
    std::uint64_t number = 0;
    signaler who;
    bool process_has_ended = false;
    bool life_has_ended = false;
    std::chrono::steady_clock::time_point certain_at = std::chrono::steady_clock::time_point::max();
  };
  void run();
  [[nodiscard]] bool poll_once();

  base::wakeup changed_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<watched>> all_;
  std::uint64_t last_number_ = 0;
  bool is_ending_ = false;
  std::jthread thread_;
};

}  // namespace gpushm::client_detail
