// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include "base/files/unique_handle.hpp"

namespace gpushm::base {

struct fd_traits {
  using value_type = int;
  static int empty() noexcept { return -1; }
  static void close(int fd) noexcept { ::close(fd); }
};

/// Owner of a file descriptor; empty is -1.
using unique_fd = unique_handle<fd_traits>;

}  // namespace gpushm::base
