// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/files/file.hpp"
#include "base/files/guarded_fd.hpp"
#include "gpushm/types.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm::succession {

/// The broker's side of the state table, which no other process can write, not even a successor: it
/// has a table of its own (docs/adr/0006). The broker never reads it.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class state_table_file {
 public:
  /// All slots are free. `resumable`: the broker may have a successor (docs/adr/0031); readers then
  /// take the table for paused until `lock`. Throws out_of_memory, too_many_descriptors.
  state_table_file(std::uint32_t slots, const gpushm::epoch& epoch, bool resumable);
  state_table_file(const state_table_file&) = delete;
  state_table_file& operator=(const state_table_file&) = delete;
  /// Precondition: it is unlocked, or the thread that called `lock` has ended.
  ~state_table_file();

  /// For clients: nothing can be written to it, nor can it be mapped for writing.
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint32_t slots() const noexcept { return slots_; }
  [[nodiscard]] const gpushm::epoch& epoch() const noexcept { return epoch_; }

  /// `state` nullopt: the slot is free.
  void set(std::uint32_t slot,
           gpushm::generation generation,
           std::optional<segment_state> state) noexcept;

  /// Makes the calling thread the table's owner, whatever the word has been. Does not block: the
  /// lock of the broker's socket excludes another owner. When that thread ends, in any way, clients
  /// see that the broker is gone. Until `unlock` the thread has a robust list of this object's own
  /// (set_robust_list): robust mutexes of the C library that it locks are not marked at its end.
  /// Throws system_error.
  void lock();
  /// Ends that, so that clients see this before the thread ends. Precondition: called from the
  /// thread that called `lock`.
  void unlock() noexcept;

 private:
  struct owner_list;
  [[nodiscard]] wire::state_table_header* header() noexcept;
  [[nodiscard]] std::atomic_ref<std::uint32_t> owner() noexcept;

  std::uint32_t slots_ = 0;
  gpushm::epoch epoch_{};
  base::guarded_fd fd_;
  base::unique_mapping mapping_;
  std::unique_ptr<owner_list> owner_list_;  ///< while locked
};

}  // namespace gpushm::succession
