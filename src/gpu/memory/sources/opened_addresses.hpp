// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

namespace gpushm::memory {

/// Records which memory the driver has mapped at which address in this process. If the driver
/// already has a mapping of a handle, opening the handle returns that mapping's address as long as
/// the mapping exists; and the handle of freed memory can be reused for other memory. So an address
/// recorded for different memory is stale memory under a reused handle. This must also be detected
/// if another thread closes the old mapping at the same time.
///
/// `Memory` identifies the memory, and is compared with ==.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
template <typename Memory>
class opened_addresses {
 public:
  struct entry {
    Memory memory;
    std::uint64_t address = 0;
    enum class state : unsigned char { open, closing, closed } now = state::open;
    std::uint64_t closed_at = 0;
  };
  using place = typename std::list<entry>::iterator;

  /// Exists while the driver opens a handle.
  class opening {
   public:
    explicit opening(opened_addresses& addresses)
        : all_(addresses), begun_at_(addresses.begin_opening()) {}
    opening(const opening&) = delete;
    opening& operator=(const opening&) = delete;
    ~opening() {
      const std::lock_guard lock(all_.mutex_);
      if (--all_.openings_ == 0) {
        all_.entries_.remove_if([](const entry& each) { return each.now == entry::state::closed; });
      }
    }

   private:
    friend class opened_addresses;
    opened_addresses& all_;
    std::uint64_t begun_at_;  ///< number of closed mappings at that time
  };

  enum class verdict : unsigned char {
    entered,  ///< `place` is set
    another,  ///< other memory is mapped there
    unsure,   ///< other memory was mapped there during the driver call: close, and open again
  };

  /// Records the `address` that the driver returned. `usable(entry)`: whether that mapping still
  /// exists in the driver. Blocks while another thread closes its mapping at that address.
  template <typename Usable>
  [[nodiscard]] verdict enter(
      const opening& opening, Memory memory, std::uint64_t address, Usable&& usable, place& place) {
    std::unique_lock lock(mutex_);
    bool waited = false;
    for (;;) {
      const entry* const closing = find_other(memory, address, entry::state::closing);
      if (closing == nullptr) {
        break;
      }
      waited = true;
      changed_.wait(lock);
    }
    bool was_mapped_during_open = waited;
    for (const entry& each : entries_) {
      if (each.address != address || each.memory == memory) {
        continue;
      }
      if (each.now == entry::state::open && usable(each)) {
        return verdict::another;
      }
      was_mapped_during_open = was_mapped_during_open || (each.now == entry::state::closed &&
                                                          each.closed_at > opening.begun_at_);
    }
    if (was_mapped_during_open) {
      return verdict::unsure;
    }
    entries_.push_front({std::move(memory), address});
    place = entries_.begin();
    return verdict::entered;
  }

  /// Call before and after the driver closes it.
  void closing(place place) noexcept {
    const std::lock_guard lock(mutex_);
    place->now = entry::state::closing;
  }
  void closed(place place) noexcept {
    {
      const std::lock_guard lock(mutex_);
      place->now = entry::state::closed;
      place->closed_at = ++closed_;
      if (openings_ == 0) {
        entries_.erase(place);
      }
    }
    changed_.notify_all();
  }

 private:
  [[nodiscard]] const entry* find_other(const Memory& memory,
                                        std::uint64_t address,
                                        typename entry::state now) const {
    for (const entry& each : entries_) {
      if (each.address == address && each.now == now && !(each.memory == memory)) {
        return &each;
      }
    }
    return nullptr;
  }

  /// Returns the number of mappings closed so far.
  [[nodiscard]] std::uint64_t begin_opening() {
    const std::lock_guard lock(mutex_);
    ++openings_;
    return closed_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<entry> entries_;
  std::uint64_t closed_ = 0;  // number of closed mappings
  int openings_ = 0;
};

}  // namespace gpushm::memory
