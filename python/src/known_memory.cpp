// SPDX-License-Identifier: Apache-2.0
#include "known_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "array.hpp"
#include "process_state.hpp"
#include "segment.hpp"

namespace gpushm_python {
namespace {

struct known {
  std::uintptr_t end = 0;
  gpushm_segment* handle = nullptr;
  std::weak_ptr<gpushm_segment> segment;
  /// The largest `end` of this one and of all before it.
  std::uintptr_t reach = 0;
  bool published = true;
};

struct known_segments {
  std::mutex mutex;
  // By their first byte. Several handles may have one mapping; what was shared may be a part of
  // other memory that was shared, or overlap it.
  std::multimap<std::uintptr_t, known> by_address;

  /// From `entries` on, until one is as it was; mappings that do not overlap end this at once.
  void update_reach(std::multimap<std::uintptr_t, known>::iterator entries) noexcept {
    for (; entries != by_address.end(); ++entries) {
      const std::uintptr_t before =
          entries == by_address.begin() ? 0 : std::prev(entries)->second.reach;
      const std::uintptr_t reach = std::max(before, entries->second.end);
      if (std::exchange(entries->second.reach, reach) == reach) {
        return;
      }
    }
  }
};

known_segments& all() {
  return process_state<known_segments>();
}

std::uintptr_t address_of(const gpushm_segment* segment) {
  return reinterpret_cast<std::uintptr_t>(gpushm_segment_data(segment));
}

/// Its place in `all()`, whose mutex is held.
std::multimap<std::uintptr_t, known>::iterator place_of(const gpushm_segment* segment) {
  const auto [first, last] = all().by_address.equal_range(address_of(segment));
  const auto at =
      std::find_if(first, last, [&](const auto& each) { return each.second.handle == segment; });
  return at == last ? all().by_address.end() : at;
}

}  // namespace

void remember_memory(const std::shared_ptr<gpushm_segment>& segment) {
  const std::uintptr_t begin = address_of(segment.get());
  if (begin == 0) {
    return;
  }
  known entry{begin + gpushm_segment_size_bytes(segment.get()), segment.get(), segment};
  const std::lock_guard lock(all().mutex);
  all().update_reach(all().by_address.emplace(begin, std::move(entry)));
}

void forget_memory(gpushm_segment* segment) noexcept {
  const std::lock_guard lock(all().mutex);
  if (const auto at = place_of(segment); at != all().by_address.end()) {
    all().update_reach(all().by_address.erase(at));
  }
}

void note_published(gpushm_segment* segment, bool published) noexcept {
  const std::lock_guard lock(all().mutex);
  if (const auto at = place_of(segment); at != all().by_address.end()) {
    at->second.published = published;
  }
}

bool is_unpublished(gpushm_segment* segment) noexcept {
  const std::lock_guard lock(all().mutex);
  const auto at = place_of(segment);
  return at != all().by_address.end() && !at->second.published;
}

std::shared_ptr<gpushm_segment> find_memory(const void* first, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  const std::lock_guard lock(all().mutex);
  auto after = all().by_address.upper_bound(begin);
  while (after != all().by_address.begin() && std::prev(after)->second.reach > begin) {
    --after;
    const known& entry = after->second;
    if (begin < entry.end && bytes <= entry.end - begin) {
      if (auto segment = entry.segment.lock()) {
        return segment;
      }
    }
  }
  return nullptr;
}

void register_known_memory(nb::module_& module) {
  module.def(
      "find_memory",
      [](std::uintptr_t address, std::uint64_t size) -> nb::object {
        auto segment = find_memory(reinterpret_cast<const void*>(address), size);
        // Without a name (imported by handle) no other process can open it.
        if (segment == nullptr || gpushm_segment_name(segment.get()).size == 0) {
          return nb::none();
        }
        const memory_range range = range_of(std::move(segment));
        const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(range.data);
        return nb::cast(
            make_array(range, nb::str("uint8"), nb::int_(size), offset, nb::none(), std::nullopt));
      },
      nb::arg("address"),
      nb::arg("size"),
      nb::sig("def find_memory(address: int, size: int) -> Array | None"),
      "The bytes at an address, if a segment that this process has open under a name has all of "
      "them.");
}

}  // namespace gpushm_python
