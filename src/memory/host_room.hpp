// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/memory_limit.hpp"

/// Room for host memory. The kernel does not fail an allocation that exceeds a cgroup's limit or
/// the machine's memory: it kills a process, often the one that allocates. So memory is taken in
/// pieces, and the room is looked at before each. Others take memory at the same time, and several
/// may have seen the same room; two rules keep them from taking more than there is:
///
///  1. A piece is at most 1/128 of what is free. However many have seen the same room, up to 128 of
///     them cannot fill it before they look again, and see less.
///  2. A reserve stays free (1/64 of the limit, 2 to 64 MiB), for those who do not look: page
///     tables, heaps, and the least pieces (64 KiB) where a 128th would be less.
///
/// Not a guarantee: a program that takes memory by touching it, 127 times faster than this one,
/// wins.
namespace gpushm::memory {

/// The most that is allocated in one call: some ten milliseconds.
inline constexpr std::uint64_t most_piece_bytes = 64ULL * 1024 * 1024;
/// The least: a look at the room takes longer than to allocate less. A multiple of every page size.
inline constexpr std::uint64_t least_piece_bytes = 64ULL * 1024;

/// The tightest bound of this process's memory, as it was when it was looked at.
struct host_room {
  std::uint64_t free_bytes = 0;  ///< what the bound leaves
  std::uint64_t bytes = 0;       ///< of it, what is not reserved
  std::string where;             ///< "this machine", or "the memory cgroup PATH (limit 300 MiB)"
  std::string next_step;         ///< to get more
};

/// What stays free of a bound.
[[nodiscard]] std::uint64_t reserve_of(std::uint64_t limit_bytes) noexcept;

/// Is there room for what is `left` of a segment of `total_bytes`, and for the page tables that map
/// all of it?
[[nodiscard]] bool has_room(const host_room& room,
                            std::uint64_t left_bytes,
                            std::uint64_t total_bytes) noexcept;
/// The largest segment that `has_room`.
[[nodiscard]] std::uint64_t largest_in(const host_room& room) noexcept;

/// What may be allocated before the room is looked at again: a multiple of `least_piece_bytes`.
[[nodiscard]] std::uint64_t piece_of(const host_room& room) noexcept;

/// The bound that leaves least. Nothing when nothing can be read. Does not throw but bad_alloc.
/// Thread-safe.
[[nodiscard]] std::optional<host_room> find_host_room(
    const base::memory_bounds& bounds = base::memory_bounds());

}  // namespace gpushm::memory
