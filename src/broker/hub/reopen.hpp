// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <string>
#include <string_view>

#include "base/files/guarded_fd.hpp"
#include "base/files/syscall.hpp"

namespace gpushm::broker_detail {

[[nodiscard]] inline base::guarded_fd reopen(std::string_view operation, int file, int access) {
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  return base::guarded_fd::open([&] {
    return base::checked(
        operation, path, "open", [&] { return ::open(path.c_str(), access | O_CLOEXEC); });
  });
}

/// The same memory, open for reading only, so that it cannot be mapped for writing either. Throws
/// too_many_descriptors, system_error.
[[nodiscard]] inline base::guarded_fd reopen_for_reading(std::string_view operation, int file) {
  return reopen(operation, file, O_RDONLY);
}

/// For reading and writing: only what this process's user has made, and the descriptor of which was
/// opened for reading.
[[nodiscard]] inline base::guarded_fd reopen_for_writing(std::string_view operation, int file) {
  return reopen(operation, file, O_RDWR);
}

}  // namespace gpushm::broker_detail
