// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "succession/descriptor_store/descriptor_store.hpp"

namespace gpushm::domains {

/// Starts of gpushm-brokerd in one run directory, over all its processes and keepers. In a file,
/// because a process, its keeper and its pod can end, and the next ones use the same directory.
struct start_counts {
  std::uint64_t starts = 0;            ///< of processes that got ready
  std::uint64_t takeovers = 0;         ///< those of them that took over from another keeper
  std::uint64_t failed_takeovers = 0;  ///< those of them that continued after such a failure

  friend bool operator==(const start_counts&, const start_counts&) = default;
};

/// Those in the file; zero, and logs why, if there are none. Throws std::bad_alloc.
[[nodiscard]] start_counts read_start_counts(const std::string& path);
/// Adds a start, also to the file. A file that cannot be written is logged: nothing depends on it.
void add_start(start_counts& counts, const std::string& path, keeper::start_reason why);

}  // namespace gpushm::domains
