// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

namespace gpushm::memory {

/// Which memory the driver has mapped at which addresses for this process. When it is asked to open
/// a handle that it knows, it gives the address that it has given before, as long as that mapping
/// lives; and the handle of freed memory can be given to other memory. So an address that is
/// another exporter's is old memory under a new name. That must be seen also when another thread
/// ends the old mapping at the same time.
///
/// `Memory` says which memory it is, and is compared with ==.
/// Distinct objects: safe. Shared objects: safe.
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

  /// Lives while the driver opens.
  class opening {
   public:
    explicit opening(opened_addresses& all) : all_(all), begun_at_(all.begin_opening()) {}
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
    std::uint64_t begun_at_;  ///< how many had been closed
  };

  enum class verdict : unsigned char {
    entered,  ///< `at` is set
    another,  ///< other memory is mapped there
    unsure,   ///< other memory was when the driver was asked: close, and open again
  };

  /// The driver gave `address`. `usable(entry)`: does that mapping still exist in the driver?
  /// Blocks while another thread closes what it has at that address.
  template <typename Usable>
  [[nodiscard]] verdict enter(
      const opening& from, Memory memory, std::uint64_t address, Usable&& usable, place& at) {
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
    bool was_there = waited;
    for (const entry& each : entries_) {
      if (each.address != address || each.memory == memory) {
        continue;
      }
      if (each.now == entry::state::open && usable(each)) {
        return verdict::another;
      }
      was_there =
          was_there || (each.now == entry::state::closed && each.closed_at > from.begun_at_);
    }
    if (was_there) {
      return verdict::unsure;
    }
    entries_.push_front({std::move(memory), address});
    at = entries_.begin();
    return verdict::entered;
  }

  /// Before and after the driver closes it.
  void closing(place at) noexcept {
    const std::lock_guard lock(mutex_);
    at->now = entry::state::closing;
  }
  void closed(place at) noexcept {
    {
      const std::lock_guard lock(mutex_);
      at->now = entry::state::closed;
      at->closed_at = ++closed_;
      if (openings_ == 0) {
        entries_.erase(at);
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

  /// How many have been closed by now.
  [[nodiscard]] std::uint64_t begin_opening() {
    const std::lock_guard lock(mutex_);
    ++openings_;
    return closed_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<entry> entries_;
  std::uint64_t closed_ = 0;  // how many were
  int openings_ = 0;
};

}  // namespace gpushm::memory
