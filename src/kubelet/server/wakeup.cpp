// SPDX-License-Identifier: Apache-2.0
#include "kubelet/server/wakeup.hpp"

#include <sys/eventfd.h>

#include <cstdint>

#include "base/syscall.hpp"

namespace gpushm::kubelet {

wakeup::wakeup()
    : event_(base::checked(
          "serve", {}, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {}

void wakeup::signal() const noexcept {
  // A counter that is full (EAGAIN) is readable all the same.
  const std::uint64_t one = 1;
  static_cast<void>(base::retry([&] { return ::write(event_.get(), &one, sizeof one); }));
}

void wakeup::take() const noexcept {
  std::uint64_t count = 0;
  static_cast<void>(base::retry([&] { return ::read(event_.get(), &count, sizeof count); }));
}

}  // namespace gpushm::kubelet
