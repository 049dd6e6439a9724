// SPDX-License-Identifier: Apache-2.0
#include "base/files/syscall.hpp"

#include <poll.h>

#include <cstring>

namespace gpushm::base {

std::string errno_text(int number) {
  const char* description = ::strerrordesc_np(number);
  const char* name = ::strerrorname_np(number);
  std::string text = description != nullptr ? description : "unknown error";
  text += " (";
  text += name != nullptr ? std::string(name) : std::to_string(number);
  text += ")";
  return text;
}

void pause_before_retry(std::chrono::milliseconds duration) noexcept {
  static_cast<void>(::poll(nullptr, 0, static_cast<int>(duration.count())));
}

errc errc_of_errno(int number) noexcept {
  switch (number) {
    case EACCES:
    case EPERM:
      return errc::permission_denied;
    case ENOMEM:
    case ENOSPC:
      return errc::out_of_memory;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return errc::too_many_descriptors;
    default:
      return errc::system_error;
  }
}

namespace {

std::string_view next_step_of(int number) noexcept {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EISDIR:
      return "name a file in it";
    default:
      break;
  }
  switch (errc_of_errno(number)) {
    case errc::permission_denied:
      return "check the owner and mode, and that a container's policy allows it";
    case errc::out_of_memory:
      return "free memory, or raise the limit of the file system or cgroup";
    case errc::too_many_descriptors:
      return "raise the open file limit (ulimit -n)";
    default:
      return "see errno(3)";
  }
}

}  // namespace

void throw_errno(int number,
                 std::string_view operation,
                 std::string_view object,
                 std::string_view call) {
  throw error(errc_of_errno(number),
              operation,
              object,
              std::string(call) + ": " + errno_text(number),
              next_step_of(number));
}

}  // namespace gpushm::base
