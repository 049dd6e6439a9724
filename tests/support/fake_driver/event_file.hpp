// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/support/fake_driver/state.hpp"

namespace gpushm::fake {

/// Counters of one event's records. They wrap, and survive the event: the next event with the same
/// words continues from there.
struct event_words {
  std::atomic<std::uint32_t> recorded;
  std::atomic<std::uint32_t> completed;

  [[nodiscard]] bool reached(std::uint32_t ticket) const noexcept {
    return static_cast<std::int32_t>(completed.load() - ticket) >= 0;
  }
};

class event_file;

/// The words of an event of which other processes can have a handle.
/// Thread-safety: distinct objects: safe.
struct shared_event {
  std::shared_ptr<event_file> file;
  std::uint32_t number = 0;  ///< in the file
  event_words* words = nullptr;
};

/// What a handle says of an event.
struct event_place {
  pid_t pid = 0;
  std::uint64_t file = 0;
  std::uint32_t number = 0;
};

/// Takes the next words of this process's last file of events; creates a file if there is none, or
/// if all words of it are in use. CUDA_ERROR_INVALID_VALUE if the file is not of a tmpfs, as
/// measured. Blocks on the file system only.
[[nodiscard]] CUresult create_shared_event(shared_event& created);
/// Gives the words back.
void free_shared_event(const shared_event& event);
/// Where another process finds it; only of an event of `create_shared_event`.
[[nodiscard]] event_place place_of(const shared_event& event);
/// Opens another process's event. CUDA_ERROR_MAP_FAILED if there is no such file.
[[nodiscard]] CUresult open_shared_event(const event_place& place, shared_event& opened);

}  // namespace gpushm::fake
