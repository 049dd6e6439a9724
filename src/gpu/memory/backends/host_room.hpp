// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/process/memory_limit.hpp"

/// Room for host memory. The kernel does not fail an allocation that exceeds a cgroup's limit or
/// the machine's memory: it kills a process, often the allocating one. So memory is allocated in
/// pieces, and the free memory is checked before each. Several processes may allocate at the same
/// time after seeing the same free memory; two rules keep them from exceeding it:
///
///  1. A piece is at most 1/128 of the free memory. Up to 128 processes that have seen the same
///     room cannot fill it before they check again, and see less.
///  2. A reserve stays free (1/64 of the limit, 2 to 64 MiB) for allocations without checks: page
///     tables, heaps, and the smallest pieces (64 KiB) where a 128th would be less.
///
/// Not a guarantee: a program that allocates memory by touching it, 127 times faster than this one,
/// can exhaust it.
namespace gpushm::memory {

/// Maximum size of one allocation call: about ten milliseconds.
inline constexpr std::uint64_t max_piece_bytes = 64ULL * 1024 * 1024;
/// Minimum size: a check takes longer than a smaller allocation. A multiple of every page size.
inline constexpr std::uint64_t min_piece_bytes = 64ULL * 1024;

/// The tightest bound of this process's memory when it was checked.
struct host_room {
  std::uint64_t free_bytes = 0;  ///< left within the bound
  std::uint64_t bytes = 0;       ///< of these, not reserved
  std::string where;             ///< "this machine", or "the memory cgroup PATH (limit 300 MiB)"
  std::string next_step;         ///< how to get more
};

/// The reserve that stays free of a bound.
[[nodiscard]] std::uint64_t reserve_of(std::uint64_t limit_bytes) noexcept;

/// Whether there is room for the remaining `left_bytes` of a segment of `total_bytes`, and for the
/// page tables that map all of it.
[[nodiscard]] bool has_room(const host_room& room,
                            std::uint64_t left_bytes,
                            std::uint64_t total_bytes) noexcept;
/// The largest segment for which `has_room` is true.
[[nodiscard]] std::uint64_t largest_in(const host_room& room) noexcept;

/// The size that may be allocated before the next check: a multiple of `min_piece_bytes`.
[[nodiscard]] std::uint64_t piece_of(const host_room& room) noexcept;

/// The bound with the least room. Nothing if no bound can be read. Throws only std::bad_alloc.
/// Thread-safe.
[[nodiscard]] std::optional<host_room> find_host_room(
    const base::memory_bounds& bounds = base::memory_bounds());

}  // namespace gpushm::memory
