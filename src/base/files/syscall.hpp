// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::base {

/// Calls `call` again while it fails with EINTR. `call` returns -1 on failure, as system calls do.
template <typename Call>
auto retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) {
    result = call();
  }
  return result;
}

/// "No such file or directory (ENOENT)".
[[nodiscard]] std::string errno_text(int number);

/// Blocks for `duration`, before retrying something that signals no event.
void pause_before_retry(std::chrono::milliseconds duration) noexcept;

/// The `errc` that best describes an errno: EACCES and EPERM are permission_denied, ENOMEM and
/// ENOSPC out_of_memory, EMFILE and ENFILE too_many_descriptors, the rest system_error.
[[nodiscard]] errc errc_of_errno(int number) noexcept;

/// Throws `error` for `number`, with the call's name in the cause.
[[noreturn]] void throw_errno(int number,
                              std::string_view operation,
                              std::string_view object,
                              std::string_view call);

/// Runs a system call with `retry` and returns its result, including -1 if errno is one of
/// `tolerated`; throws `error` for any other errno.
template <typename Call>
auto checked(std::string_view operation,
             std::string_view object,
             std::string_view call_name,
             Call&& call,
             std::initializer_list<int> tolerated = {}) {
  auto result = retry(call);
  if (result == -1) {
    const int number = errno;
    for (const int allowed : tolerated) {
      if (number == allowed) {
        return result;
      }
    }
    throw_errno(number, operation, object, call_name);
  }
  return result;
}

}  // namespace gpushm::base
