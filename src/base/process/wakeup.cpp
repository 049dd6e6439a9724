// SPDX-License-Identifier: Apache-2.0
#include "base/process/wakeup.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/files/syscall.hpp"

namespace gpushm::base {

wakeup::wakeup(const char* operation)
    : event_(checked(
          operation, {}, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {}

void wakeup::signal() const noexcept {
  // A full counter (EAGAIN) is readable too.
  const std::uint64_t one = 1;
  static_cast<void>(retry([&] { return ::write(event_.get(), &one, sizeof one); }));
}

bool wakeup::take() const noexcept {
  std::uint64_t count = 0;
  return retry([&] { return ::read(event_.get(), &count, sizeof count); }) == sizeof count;
}

}  // namespace gpushm::base
