// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>

namespace gpushm::base {

/// The alignment of mmap offsets, fixed addresses and host chunks: 4 KiB on x86-64; on aarch64 it
/// depends on the kernel's build (64 KiB on many Grace machines). From sysconf, which reads the
/// value that the kernel passed to this process at its start (AT_PAGESZ): no system call, does not
/// fail. Thread-safe, and usable before main.
[[nodiscard]] inline std::uint64_t host_page_bytes() noexcept {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace gpushm::base
