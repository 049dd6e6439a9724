// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

/// gpushm runs inside programs that it does not control, and they may fork. A forked child has a
/// copy of every descriptor, none of the threads, and every lock in its state at that moment. Three
/// rules keep parent and child apart:
///
///  1. Long-lived descriptors are owned by `guarded_fd`: the child closes its copies immediately,
///     so that connections, locks and memory end with the parent.
///  2. An object records the `fork_generation` in which it was created. In a child its functions
///     throw `errc::forked` before they take a lock, and its destructor leaks its resources: it
///     neither closes numbers that belong to other files by now, nor removes files of the parent.
///  3. Process-wide locks that a child may use are `fork_safe_mutex`.
///
/// A fourth rule protects other processes: GPU work of a dead process continues while any process
/// has its driver files. A child replaces those that it has inherited, and then closes the life
/// pipe, if there is one.
///
/// A single set of pthread_atfork handlers implements this. Registering a descriptor is one atomic
/// operation. A child created without handlers (_Fork, clone) is recognised by a page that the
/// kernel clears in children, and closes the copies at its first call into the library. vfork,
/// posix_spawn and system() run no handlers and need none: all descriptors are close-on-exec.
namespace gpushm::base {

/// A number that differs between a process and every child forked from it. No system call.
/// Thread-safe.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// True in a process that was forked after `created_in` was obtained from `fork_generation`.
[[nodiscard]] inline bool is_forked_child_of(std::uint64_t created_in) noexcept {
  return fork_generation() != created_in;
}

/// Delays forks while it exists: for the moments in which a descriptor is open but not yet
/// registered, or no longer registered but not yet closed. Must be short, must not block, and must
/// not be nested. A fork waits at most half a second: a close that blocks longer (the last one of a
/// file of many GiB) does not stop it, and a thread that is not scheduled for that long leaks at
/// most one descriptor into the child.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe; a local variable.
class fork_section {
 public:
  fork_section() noexcept;
  fork_section(const fork_section&) = delete;
  fork_section& operator=(const fork_section&) = delete;
  ~fork_section();
};

/// Registers `fd` to be closed in forked children. Throws `errc::out_of_memory` (only for numbers
/// above 524,287). Lock-free. For `guarded_fd`; use that instead.
void close_in_child(int fd);
/// Call before `fd` is closed, with a `fork_section`. Lock-free.
void keep_in_child(int fd) noexcept;

/// For a child that is about to execute a program: lets it inherit the standard streams only,
/// unless the flag FD_CLOEXEC of others is cleared afterwards. Async-signal-safe. Linux before 5.11
/// lacks the flag; the program then inherits what this process has.
void close_others_at_exec() noexcept;

/// The read end of this process's life pipe, created by the first call and kept open by the
/// process. It hangs up once neither this process, nor any child that may have its driver files,
/// has the write end: children inherit that end, replace the driver's files with /dev/null
/// (device_files.hpp), and then close it; exec closes it along with those files. Thread-safe.
/// Throws `errc::too_many_descriptors`, system_error.
[[nodiscard]] int life_pipe();

/// A mutex that is free in every forked child, with the data it guards in a consistent state: the
/// forking thread holds it during the fork. Only for sections that are short, take no other lock,
/// and call no foreign code.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
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
