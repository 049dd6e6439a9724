// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/host_room.hpp"

#include <algorithm>

#include "base/text/size_text.hpp"

namespace gpushm::memory {

namespace {

/// Upper bound of concurrent allocators.
constexpr std::uint64_t max_allocators = 128;
/// Page tables of 4 KiB pages take 1/512 of the mapped size, and the index of a file's pages about
/// as much.
constexpr std::uint64_t overhead_divisor = 256;

constexpr std::uint64_t mib = 1024ULL * 1024;
constexpr std::uint64_t min_reserve = 2 * mib;
constexpr std::uint64_t max_reserve = 64 * mib;

}  // namespace

std::uint64_t reserve_of(std::uint64_t limit_bytes) noexcept {
  // The minimum reserve would be too much for a very small container.
  return std::min(std::clamp(limit_bytes / 64, min_reserve, max_reserve), limit_bytes / 8);
}

bool has_room(const host_room& room, std::uint64_t left_bytes, std::uint64_t total_bytes) noexcept {
  return left_bytes <= room.bytes && total_bytes / overhead_divisor <= room.bytes - left_bytes;
}

std::uint64_t largest_in(const host_room& room) noexcept {
  return room.bytes - (room.bytes + 1) / (overhead_divisor + 1);
}

std::uint64_t piece_of(const host_room& room) noexcept {
  const std::uint64_t part = room.free_bytes / max_allocators / min_piece_bytes * min_piece_bytes;
  return std::clamp(part, min_piece_bytes, max_piece_bytes);
}

std::optional<host_room> find_host_room(const base::memory_bounds& bounds) {
  std::optional<host_room> tightest;
  for (const base::memory_bound& each : bounds.read()) {
    const std::uint64_t limit = std::max(each.limit_bytes, each.free_bytes);
    const std::uint64_t room = each.free_bytes - std::min(each.free_bytes, reserve_of(limit));
    if (tightest && tightest->bytes <= room) {
      continue;
    }
    if (each.cgroup.empty()) {
      tightest = {each.free_bytes, room, "this machine", "use a smaller size, or free memory"};
    } else {
      tightest = {
          each.free_bytes,
          room,
          "the memory cgroup " + each.cgroup + " (limit " + base::size_text(each.limit_bytes) + ")",
          "use a smaller size, or raise the container's memory limit"};
    }
  }
  return tightest;
}

}  // namespace gpushm::memory
