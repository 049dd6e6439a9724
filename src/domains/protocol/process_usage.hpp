// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpushm::domains {

/// What a process uses of its machine. 0: unknown (/proc is not mounted).
struct process_usage {
  std::uint64_t resident_bytes = 0;
  std::uint64_t virtual_bytes = 0;
  std::uint64_t cpu_ns = 0;  ///< of all threads, in user and system mode
  std::uint64_t open_descriptors = 0;
  std::uint64_t max_descriptors = 0;  ///< the soft limit
  std::uint64_t start_unix_ns = 0;
  friend bool operator==(const process_usage&, const process_usage&) = default;
};

/// Returns the usage of the calling process. Reads files below /proc/self. Thread-safe. Throws
/// std::bad_alloc.
[[nodiscard]] process_usage usage_of_this_process();

}  // namespace gpushm::domains
