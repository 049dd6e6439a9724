// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

/// gpushm runs inside other people's processes, and those fork. A forked child has a copy of every
/// descriptor, none of the threads, and every lock as it was at that moment. Three rules keep
/// parent and child apart:
///
///  1. Long-lived descriptors are owned by `guarded_fd`: the child closes its copies at once, so
///     that connections, locks and memory end with the parent.
///  2. An object remembers the `fork_generation` it was made in. In a child its functions throw
///     `errc::forked` before they take a lock, and its destructor leaks what it holds: it neither
///     closes numbers that belong to other files by now, nor removes files of the parent.
///  3. Locks of the whole process that a child may use are `fork_safe_mutex`.
///
/// A fourth concerns others: GPU work of a dead process goes on while anybody has its driver files.
/// A child gives up those that it has inherited, and then the life pipe, if there is one.
///
/// One pthread_atfork handler does it. Registering a descriptor is one atomic operation. A child
/// made without handlers (_Fork, clone) is recognised by a page that the kernel clears in children,
/// and closes the copies at its first call into the library. vfork, posix_spawn and system() run no
/// handler and need none: all descriptors close on exec.
namespace gpushm::base {

/// A number that differs between a process and every child that is forked off it. No system call.
/// Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// True in a process that was forked off after `made_in` was taken from `fork_generation`.
[[nodiscard]] inline bool is_forked_child_of(std::uint64_t made_in) noexcept {
  return fork_generation() != made_in;
}

/// While one lives, a fork waits: for the moments in which a descriptor is open and not yet
/// registered, or not registered any more and not yet closed. Must be short, must not block, and
/// must not be nested. A fork waits at most half a second: a close that blocks longer (the last one
/// of a file of many GiB) does not stop it, and a thread that is not run for that long costs at
/// most a descriptor that lives on in the child.
///
/// Distinct objects: safe. Shared objects: unsafe; a local variable.
class fork_section {
 public:
  fork_section() noexcept;
  fork_section(const fork_section&) = delete;
  fork_section& operator=(const fork_section&) = delete;
  ~fork_section();
};

/// Marks `fd` as one that a forked child closes. Throws `errc::out_of_memory` (only for numbers
/// above 524,287). Lock-free. For `guarded_fd`, which is what to use.
void close_in_child(int fd);
/// Call before `fd` is closed, with a `fork_section`. Lock-free.
void keep_in_child(int fd) noexcept;

/// The read end of this process's life pipe, made at the first call; the process keeps it. It hangs
/// up once neither this process, nor any child that may have its driver files, has the write end:
/// children inherit that end, put /dev/null in the place of the driver's files (device_files.hpp),
/// and then close it; exec closes it as it closes those files. Thread-safe. Throws
/// `errc::too_many_descriptors`, system_error.
[[nodiscard]] int life_pipe();

/// A mutex that is free in every forked child, with what it guards in a consistent state: the
/// forking thread holds it over the fork. Only for sections that are short, take no other lock, and
/// call no foreign code.
///
/// Distinct objects: safe. Shared objects: safe.
class fork_safe_mutex {
 public:
  fork_safe_mutex() noexcept;
  fork_safe_mutex(const fork_safe_mutex&) = delete;
  fork_safe_mutex& operator=(const fork_safe_mutex&) = delete;
  ~fork_safe_mutex();

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct fork_handlers;
  std::mutex mutex_;
  fork_safe_mutex* next_ = nullptr;
};

}  // namespace gpushm::base
