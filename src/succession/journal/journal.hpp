// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "base/files/unique_fd.hpp"
#include "protocol/transport/reported_call.hpp"

namespace gpushm::journal {

/// Names a record. The meaning of each number is the caller's; `kind` values are stored, so that
/// another version can read them: never renumber.
struct record_key {
  std::uint32_t kind = 0;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const record_key&, const record_key&) = default;
  friend bool operator<(const record_key& key, const record_key& two) noexcept {
    return std::tie(key.kind, key.first, key.second) < std::tie(two.kind, two.first, two.second);
  }
};

/// Who may be the cause when processes die again and again. In the file, and not part of a commit:
/// each field is a store that takes effect at once. All zero: nothing.
struct death_notes {
  std::uint64_t handling = 0;       ///< the step that is being taken; 0: none
  std::uint64_t blamed = 0;         ///< the step that was being taken at the last death
  std::uint32_t deaths = 0;         ///< in a row, in that step
  std::uint32_t failed_starts = 0;  ///< in a row: processes that have ended while they read it
};

/// Records that survive this process: in a memfd, whose descriptor another process keeps. One
/// process at a time reads and writes it.
///
/// Changes (`put`, `erase`) take effect together, at `commit`, by a single store. After a SIGKILL
/// at any instruction, `open` of the same descriptor has the records as of the last commit
/// (docs/adr/0031). A commit also gives back memory: the file has its records, and of their history
/// at most 3/8 of that or 2 MiB, and 1 MiB in advance (docs/adr/0036).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class journal {
 public:
  /// The largest size of the file; twice as much address space is reserved. More than what clients
  /// can occupy of gpushm-brokerd's memory: a journal that its state alone fills stops the domain.
  static constexpr std::uint64_t default_max_bytes = std::uint64_t{4} << 30U;

  /// A new, empty journal. Throws `error`: out_of_memory, too_many_descriptors, system_error.
  [[nodiscard]] static journal create(std::uint64_t max_bytes = default_max_bytes);
  /// Reads an existing journal; uncommitted changes in it are dropped. It keeps its limit. Throws
  /// `error`: invalid_argument if the file is not a complete journal of this version, or is
  /// damaged.
  [[nodiscard]] static journal open(base::unique_fd file);

  journal(journal&&) noexcept;
  journal& operator=(journal&&) noexcept;
  journal(const journal&) = delete;
  journal& operator=(const journal&) = delete;
  ~journal();

  /// Stays valid as long as this object.
  [[nodiscard]] int descriptor() const noexcept;

  /// Replaces the record, or adds it. Throws out_of_memory at `max_bytes` or if memory is short,
  /// and std::bad_alloc; the changes since the last commit are then as before this call.
  void put(const record_key& key, std::span<const std::byte> value);
  /// Returns false if there is no such record. Does not fail: `put` has reserved the space.
  bool erase(const record_key& key) noexcept;
  void commit() noexcept;
  /// Drops the changes since the last commit.
  void roll_back() noexcept;

  /// The committed record. The bytes are valid until the next commit.
  [[nodiscard]] std::optional<std::span<const std::byte>> find(
      const record_key& key) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// Calls `visit(key, bytes)` for each committed record, in no particular order. `visit` must not
  /// change the journal.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    auto* const called = std::addressof(visit);
    visit_all(
        [](const void* context, const record_key& key, std::span<const std::byte> value) {
          (**static_cast<decltype(called) const*>(context))(key, value);
        },
        &called);
  }

  /// Drops the changes since the last commit. From here to `end_rewrite`, `put` must be called for
  /// every record that is to exist; it writes only those that differ.
  void begin_rewrite() noexcept;
  /// Erases the records that were not put since `begin_rewrite`. `commit` makes it permanent.
  void end_rewrite() noexcept;

  /// A new journal without records and with the next `sequence`, for a caller that puts everything
  /// again. It is at least as large. This one is unchanged; use only the new one from then on. If
  /// both are found, the one with the higher sequence is the current one. Throws as `create`.
  [[nodiscard]] journal emptied(std::uint64_t max_bytes = default_max_bytes) const;
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  /// Bytes of the file that are in use.
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;

  /// For a system call whose effect must be known after a SIGKILL. In the file.
  [[nodiscard]] transport::reported_call& call() noexcept;
  [[nodiscard]] death_notes& notes() noexcept;

 private:
  using visitor = void (*)(const void* context,
                           const record_key& key,
                           std::span<const std::byte> value);
  class impl;
  explicit journal(std::unique_ptr<impl> impl);
  void visit_all(visitor visit, const void* context) const;

  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::journal
