// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process/cgroups.hpp"

namespace gpushm::base {

/// A current bound on the memory of this process.
struct memory_bound {
  std::uint64_t limit_bytes = 0;
  /// The memory that can be allocated before the kernel kills a process: includes droppable page
  /// cache and swap space. An estimate.
  std::uint64_t free_bytes = 0;
  /// The memory cgroup as its hierarchy's mount shows it; empty: the machine itself.
  std::string cgroup;
};

/// The bounds of this process: the machine, and the memory cgroups (version 1 and 2) of this
/// process and their parents, as far as they are mounted. The constructor locates the cgroups:
/// create an object per task and do not keep it for the life of the process.
///
/// Thread-safety: distinct objects: safe; shared objects: const functions are safe.
class memory_bounds {
 public:
  /// Files are read below `root`, empty for the machine's own; tests pass another. Throws only
  /// std::bad_alloc.
  explicit memory_bounds(std::string root = {});

  /// Returns the bounds that have a limit. Reads files. Throws only std::bad_alloc.
  [[nodiscard]] std::vector<memory_bound> read() const;

  /// The smallest limit, regardless of usage; the maximum value if there is none. As `read`.
  [[nodiscard]] std::uint64_t lowest_limit_bytes() const;

 private:
  std::string root_;
  std::vector<cgroup_place> groups_;
};

/// How much memory this process may use. See `memory_bounds::lowest_limit_bytes`.
[[nodiscard]] inline std::uint64_t memory_limit_bytes() {
  return memory_bounds().lowest_limit_bytes();
}

/// The memory of this process's container.
struct container_memory {
  std::uint64_t used_bytes = 0;
  std::uint64_t limit_bytes = 0;
  std::uint64_t kills = 0;  ///< processes killed for lack of memory, by the kernel
};
/// Reads the innermost memory cgroup (version 1 or 2) with a limit. Returns nullopt if there is
/// none, or its files cannot be read. `root` as for `memory_bounds`. Throws only std::bad_alloc.
[[nodiscard]] std::optional<container_memory> memory_of_container(const std::string& root = {});

/// What a broker keeps for its members unless an option says otherwise, journals included: half of
/// `limit_bytes`, at most 1 GiB. The other half is for the journals' history (3/8 of them),
/// the overhead of allocator and kernel, and the program itself (docs/adr/0036).
[[nodiscard]] constexpr std::uint64_t memory_for_members(std::uint64_t limit_bytes) noexcept {
  constexpr std::uint64_t most = std::uint64_t{1} << 30U;
  return limit_bytes / 2 < most ? limit_bytes / 2 : most;
}

}  // namespace gpushm::base
