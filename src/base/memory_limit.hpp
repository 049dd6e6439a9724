// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cgroups.hpp"

namespace gpushm::base {

/// Something that bounds the memory of this process, as it is now.
struct memory_bound {
  std::uint64_t limit_bytes = 0;
  /// What can be taken until the kernel kills something: page cache that can be dropped and swap
  /// space are counted in. An estimate.
  std::uint64_t free_bytes = 0;
  /// The memory cgroup as its hierarchy's mount shows it; empty: the machine itself.
  std::string cgroup;
};

/// The bounds of this process: the machine, and the memory cgroups (version 1 and 2) of this
/// process and those above it, as far as they are mounted. Where the cgroups are is found out once:
/// an object is for a piece of work and not for a process's life.
///
/// Distinct objects: safe. Shared objects: const functions are safe.
class memory_bounds {
 public:
  /// Files are read below `root`, empty for the machine's own; tests have others. Does not throw
  /// but bad_alloc.
  explicit memory_bounds(std::string root = {});

  /// Those that have a limit. Reads files. Does not throw but bad_alloc.
  [[nodiscard]] std::vector<memory_bound> read() const;

  /// The least limit, whatever is in use; the largest value when there is none. As `read`.
  [[nodiscard]] std::uint64_t least_limit_bytes() const;

 private:
  std::string root_;
  std::vector<cgroup_place> groups_;
};

/// How much memory this process may use. See `memory_bounds::least_limit_bytes`.
[[nodiscard]] inline std::uint64_t memory_limit_bytes() {
  return memory_bounds().least_limit_bytes();
}

}  // namespace gpushm::base
