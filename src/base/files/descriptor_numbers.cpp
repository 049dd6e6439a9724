// SPDX-License-Identifier: Apache-2.0
#include "base/files/descriptor_numbers.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

void reserve_descriptor_numbers(std::size_t count) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const auto numbers = static_cast<int>(std::min<rlim_t>(count, limit.rlim_cur));
  const unique_fd any(::eventfd(0, EFD_CLOEXEC));
  if (any && any.get() < numbers) {
    const unique_fd last(::fcntl(any.get(), F_DUPFD_CLOEXEC, numbers - 1));
  }
}

}  // namespace gpushm::base
