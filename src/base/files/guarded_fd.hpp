// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "base/files/fork_guard.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::base {

/// Owner of a file descriptor that a forked child closes (fork_guard.hpp). In the child every copy
/// of the object is empty, and destroying it closes nothing. For long-lived descriptors: listeners,
/// locks, connections, memory. A `unique_fd` converts to one. Only for the descriptor table that
/// the program's threads share: in a thread with its own table (CLOSE_RANGE_UNSHARE), the numbers
/// refer to other files in a child.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class guarded_fd {
 public:
  guarded_fd() noexcept = default;
  /// A fork between the call that created the descriptor and this constructor leaves a copy in the
  /// child: see `open`. Throws `errc::out_of_memory` (only for numbers above 524,287).
  // NOLINTNEXTLINE(google-explicit-constructor): the same thing, better guarded
  guarded_fd(unique_fd fd) {
    if (fd) {
      created_in_ = fork_generation();  // first: a child that finds out now closes what is guarded
      close_in_child(fd.get());
      fd_ = fd.release();
    }
  }
  guarded_fd(guarded_fd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), created_in_(other.created_in_) {}
  guarded_fd& operator=(guarded_fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      created_in_ = other.created_in_;
    }
    return *this;
  }
  guarded_fd(const guarded_fd&) = delete;
  guarded_fd& operator=(const guarded_fd&) = delete;
  ~guarded_fd() { reset(); }

  /// Owns the result of the system call `make`; empty if that is -1. No fork comes in between.
  template <typename Make>
  [[nodiscard]] static guarded_fd open(Make&& make) {
    const fork_section section;
    return {unique_fd(static_cast<int>(make()))};
  }

  /// -1 when empty, and in a forked child.
  [[nodiscard]] int get() const noexcept {
    return fd_ == -1 || is_forked_child_of(created_in_) ? -1 : fd_;
  }
  explicit operator bool() const noexcept { return get() != -1; }
  /// Releases the descriptor without closing it; children forked from here on keep their copy.
  [[nodiscard]] unique_fd release() noexcept {
    const int fd = get();
    fd_ = -1;
    if (fd != -1) {
      keep_in_child(fd);
    }
    return unique_fd(fd);
  }
  // NOLINTNEXTLINE(google-explicit-constructor): for callers that fork and mean to pass it on
  operator unique_fd() && noexcept { return release(); }
  void reset() noexcept {
    if (fd_ == -1) {
      return;
    }
    const fork_section section;
    if (!is_forked_child_of(created_in_)) {
      keep_in_child(fd_);
      ::close(fd_);
    }
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  std::uint64_t created_in_ = 0;
};

/// Guards all descriptors of a packet. Throws as `guarded_fd`.
[[nodiscard]] inline std::vector<guarded_fd> guard_all(std::vector<unique_fd> fds) {
  return {std::make_move_iterator(fds.begin()), std::make_move_iterator(fds.end())};
}

}  // namespace gpushm::base
