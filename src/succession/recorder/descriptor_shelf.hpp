// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/recorder/keeper_health.hpp"
#include "succession/records/records.hpp"

namespace gpushm::succession {

/// The descriptors of one domain in the keeper. Each has a number that is never used again. A
/// thread with a descriptor table of its own needs an object of its own (`another`).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class descriptor_shelf {
 public:
  /// `domain`: a short name that no other domain of this process has; the names of its descriptors
  /// begin with it. `stored`: the numbers of those that the keeper has already.
  descriptor_shelf(keeper::descriptor_store store,
                   std::string domain,
                   std::span<const records::descriptor_id> stored = {});

  /// The same descriptors, through a socket of its own. Throws as descriptor_store.
  [[nodiscard]] descriptor_shelf another() const;

  /// Gives the keeper a copy. Returns 0, and does nothing, after `end`, or if the keeper has ended:
  /// the broker continues without one, which is logged once. Blocks only if the keeper
  /// does not read, up to 2 s. Throws `error`: timed_out, system_error.
  [[nodiscard]] records::descriptor_id put(int descriptor);
  /// The same, but does not block: nullopt if the keeper does not read at the moment.
  [[nodiscard]] std::optional<records::descriptor_id> try_put(int descriptor);
  /// The same as `put` for a journal, of which only the one with the highest sequence is used.
  /// Blocks until the keeper has confirmed that it has stored it, up to 2 s; systemd
  /// confirms only that it has processed it. If that fails, a successor does not find it unless the
  /// keeper did not read, which ends with the next call for this sequence, or with `end`. Throws
  /// as `put`, and too_many_descriptors.
  void put_confirmed_journal(int descriptor, std::uint64_t sequence);
  /// The same in two steps that do not block. The first one returns a pipe that is readable once
  /// the keeper has replied, which the second one then reads: the error if the journal is not
  /// stored. Nullopt: the keeper does not read at the moment. An empty descriptor: there is no
  /// keeper.
  [[nodiscard]] std::optional<base::unique_fd> begin_put_journal(int descriptor,
                                                                 std::uint64_t sequence);
  [[nodiscard]] static std::optional<error> reply_in(int pipe) {
    return keeper::descriptor_store::reply_in(pipe);
  }
  /// Does not block. Returns false if the keeper does not read: try again later.
  [[nodiscard]] bool remove_journal(std::uint64_t sequence) noexcept;
  /// Call for an error from `reply_in`.
  void note_refusal() noexcept;
  [[nodiscard]] std::shared_ptr<const keeper_health> health() const noexcept;
  /// Lets the keeper close its copy. Returns false if the keeper does not read: try again later.
  [[nodiscard]] bool remove(records::descriptor_id number) noexcept;
  /// Blocks until the keeper has closed its copies of these, up to 5 s each time that it does not
  /// read; 0: none. Call before the last close of a descriptor that could block the keeper. What
  /// the keeper could not store is not an error here. Throws as descriptor_store::flush; another
  /// call with the same numbers removes the rest.
  void remove_and_wait(std::span<const records::descriptor_id> numbers);
  /// Removes this journal and all descriptors, of every object of the domain: nothing remains for a
  /// successor. Blocks until the keeper has closed its copies, or for 5 s. Throws as
  /// descriptor_store::flush; another call removes the rest.
  void end(std::uint64_t journal_sequence);

  /// What the name of a descriptor says. Nothing: it is not of this form.
  struct label {
    std::string domain;
    bool is_journal = false;
    std::uint64_t number = 0;
  };
  [[nodiscard]] static std::optional<label> parse(std::string_view name);

 private:
  struct contents;
  [[nodiscard]] bool is_stored(records::descriptor_id number) const;
  void wait();
  [[nodiscard]] records::descriptor_id put_within(int descriptor,
                                                  std::chrono::milliseconds timeout);
  [[nodiscard]] bool remove_named(const std::string& name) noexcept;
  [[nodiscard]] bool has_sent(const std::function<void()>& send);
  descriptor_shelf(keeper::descriptor_store store,
                   std::string domain,
                   std::shared_ptr<contents> shared)
      : store_(std::move(store)), domain_(std::move(domain)), contents_(std::move(shared)) {}
  [[nodiscard]] std::string name_of(char kind, std::uint64_t number) const;

  keeper::descriptor_store store_;
  std::string domain_;
  std::shared_ptr<contents> contents_;
};

/// Calls `attempt` again and again, until it returns or `gives_up` returns true after a failure:
/// what the keeper has is not forgotten because the keeper was slow, or this process had no
/// descriptor left. Blocks for as long. Also returns if the keeper has ended. Logs the first
/// failure.
void retry_with_keeper(const std::function<void()>& attempt,
                       const std::function<bool()>& gives_up) noexcept;

}  // namespace gpushm::succession
