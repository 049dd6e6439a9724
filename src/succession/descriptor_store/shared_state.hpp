// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/files/unique_fd.hpp"
#include "succession/descriptor_store/shared_time.hpp"
#include "succession/descriptor_store/takeover_pause.hpp"
#include "succession/descriptor_store/watchdog.hpp"

/// What the processes of a keeper share (guard.hpp), besides the stored descriptors. Each member
/// changes in one store, so that the next worker finds it before or after the change. All members
/// are valid if all bytes are 0.
namespace gpushm::keeper {

/// A descriptor that both own; empty: none.
class shared_number {
 public:
  [[nodiscard]] int get() const noexcept { return plus_one_ - 1; }
  explicit operator bool() const noexcept { return plus_one_ != 0; }
  void take(base::unique_fd descriptor) noexcept {
    reset();
    plus_one_ = descriptor.release() + 1;
  }
  void reset() noexcept {
    // In this order: the next worker closes what it does not know.
    if (const int number = release(); number != -1) {
      ::close(number);
    }
  }
  [[nodiscard]] int release() noexcept { return plus_one_.exchange(0) - 1; }

 private:
  std::atomic<int> plus_one_;
};

struct shared_state {
  std::atomic<bool> has_begun;  ///< a worker has been there
  shared_number socket;         ///< for notifications

  // ---- takeover ----
  /// Whose program uses the descriptors.
  enum class place : unsigned char {
    own,
    successors,  ///< until it is ready
    undecided,   ///< the successor has failed, but its program may be alive
    nowhere,     ///< a successor has taken over
  };
  std::atomic<place> used_by;
  shared_number lock;      ///< of the listener
  shared_number listener;  ///< for a successor
  std::atomic<bool> removes_files;
  std::atomic<dev_t> device;  ///< of the listener's file
  std::atomic<ino_t> inode;
  shared_number successor;
  shared_number successor_life;  ///< end of file: neither it nor its program is alive
  shared_number predecessor;     ///< until the program is ready
  shared_number life;            ///< for the program, until it is ready
  shared_time ready_by;
  takeover_pause pause;  ///< after takeovers from this keeper that have failed

  // ---- the program ----
  std::atomic<pid_t> child;    ///< 0: there is none; stored after `program`
  shared_number program;       ///< a pidfd of `child`
  shared_number program_life;  ///< end of file: the program has no descriptors
  std::atomic<bool> is_ready;  ///< the program has sent READY=1
  std::atomic<bool> is_away;   ///< it was ended for a takeover, and is not ready again
  watchdog reports;            ///< of the program, once it is ready
  shared_time gone_at;         ///< then the program is not waited for any longer
  shared_time kill_at;         ///< after SIGTERM
  shared_time started;
  shared_time start_at;
  std::atomic<std::chrono::milliseconds::rep> delay;

  // ---- requests ----
  std::atomic<bool> is_ending;
  std::atomic<bool> is_to_be_replaced;
  std::atomic<std::uint64_t> message;  ///< the number of the first notification
  std::atomic<unsigned> attempts;      ///< how many workers have begun to handle it
  /// Since the last barrier.
  enum class problem : unsigned char { none, memory, open_files, full };
  std::atomic<problem> last_problem;
};

}  // namespace gpushm::keeper
