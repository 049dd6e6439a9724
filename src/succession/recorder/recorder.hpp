// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "core/domain.hpp"
#include "core/saved_state.hpp"
#include "protocol/transport/listener.hpp"
#include "protocol/transport/reported_call.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/kept_fd.hpp"
#include "succession/recorder/step.hpp"
#include "succession/records/records.hpp"

namespace gpushm::succession {

/// What cannot be done at the moment has changed nothing, and can be tried again without a reply
/// to the client, which notices nothing of it.
class retry_later : public error {
  using error::error;
};

/// The keeper does not read at the moment.
class keeper_busy final : public retry_later {
  using retry_later::retry_later;
};

/// Returns the error for descriptors that a keeper that has not read for long cannot store:
/// errc::timed_out.
[[nodiscard]] error keeper_is_behind();

/// Records what a successor needs (docs/adr/0031): changes in the journal, descriptors in the
/// keeper. Changes take effect together, at `commit`, which comes before anything that a client can
/// see. A change that cannot be recorded leaves the recorder "behind": then nothing may be sent or
/// received until everything is recorded again (`hub::catch_up`).
///
/// A default-constructed object records nothing; a broker without a successor has one.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class recorder {
 public:
  recorder() = default;
  /// `next_packet`: larger than the number of every recorded packet.
  recorder(journal::journal log, descriptor_shelf shelf, std::uint64_t next_packet)
      : on_(std::make_unique<parts>(std::move(log), std::move(shelf))), next_packet_(next_packet) {}

  [[nodiscard]] bool is_on() const noexcept { return on_ != nullptr; }
  /// For system calls that report in the journal.
  [[nodiscard]] transport::reported_call& call() noexcept { return on_ ? on_->log.call() : call_; }
  /// While it exists, this step is what the process dies of, if it does (`journal::death_notes`).
  /// One within another one takes its place meanwhile.
  class step {
   public:
    step(recorder& recorder, step_note step) noexcept
        : by_(recorder), value_(step.value()), outer_(recorder.begin_step(value_)) {}
    step(const step&) = delete;
    step& operator=(const step&) = delete;
    ~step() { by_.end_step(value_, outer_); }

   private:
    recorder& by_;
    std::uint64_t value_;
    std::uint64_t outer_;
  };
  /// The domain of a predecessor is complete again: it has not ended this process.
  void end_continuing() noexcept {
    if (on_) {
      on_->log.notes().failed_starts = 0;
    }
  }
  /// A number for a packet, larger than those before.
  [[nodiscard]] std::uint64_t next_packet() noexcept { return next_packet_++; }

  /// How long requests wait for a keeper that does not read, before they are refused.
  static constexpr std::chrono::milliseconds keeper_patience{2'000};

  /// Returns its number in the keeper; 0 if off. Does not block. Throws keeper_busy if the keeper
  /// does not read; `keeper_is_behind` if it has not done so for `keeper_patience`; else as
  /// descriptor_shelf::put. Nothing is stored then.
  [[nodiscard]] records::descriptor_id keep(int descriptor);
  /// Sets `file.id`, unless it is set or `file` is empty. Throws as above.
  void keep(kept_fd& file) {
    if (file && file.id == 0) {
      file.id = keep(file.get());
    }
  }
  /// `keep` would throw keeper_busy.
  [[nodiscard]] bool waits_for_keeper() const noexcept;
  /// Another socket of the domain, in place of that in the domain's broker_record. No effect if
  /// off. Throws as `keep`, and out_of_memory while behind; nothing has changed then.
  void replace_listener(int descriptor, const transport::file_identity& file);
  /// Lets the keeper close its copy, after the next commit. 0: no effect.
  void forget(records::descriptor_id number) noexcept;
  /// The keeper has not read some of it: another commit tries again.
  [[nodiscard]] bool has_to_forget() const noexcept {
    return on_ && !(on_->to_forget.empty() && on_->old_journals.empty());
  }
  /// It has not read much of it: `keep` waits for it, or it would have more than is charged.
  [[nodiscard]] bool is_keeper_behind() const noexcept {
    return on_ && on_->to_forget.size() > max_to_forget;
  }
  /// Null if it is off.
  [[nodiscard]] std::shared_ptr<const keeper_health> health() const noexcept {
    return on_ ? on_->shelf.health() : nullptr;
  }
  /// A shelf for another thread; nullopt if off.
  [[nodiscard]] std::optional<descriptor_shelf> another_shelf() const;

  /// Removes everything from the keeper and the journal; off from then on. Blocks for seconds at
  /// most; what the keeper does not remove meanwhile is removed later, by another thread.
  void end() noexcept;

  // No effect if off.
  void put(const journal::record_key& key, const records::broker_value& value) noexcept;
  /// monostate: erases it.
  void put(const core::record_name& name, const core::saved_value& value) noexcept;
  /// A record without a value.
  void mark(const journal::record_key& key) noexcept;
  /// Returns false if there is no such record.
  bool erase(const journal::record_key& key) noexcept;
  /// There is such a committed record.
  [[nodiscard]] bool has(const journal::record_key& key) const noexcept {
    return on_ && on_->log.find(key).has_value();
  }
  /// Records the committed value of `source` also under `target`. Returns false if there is
  /// nothing.
  bool copy(const journal::record_key& source, const journal::record_key& target) noexcept;
  /// Something could not be recorded.
  void fall_behind() noexcept { is_behind_ = is_on(); }
  [[nodiscard]] bool is_behind() const noexcept { return is_behind_; }

  /// Makes the changes permanent. No effect while behind.
  void commit() noexcept;
  /// The same after `call()` has been recorded, which it forgets.
  void commit_call() noexcept;

  /// Records everything again: `record` must call `put` or `mark` for everything that exists,
  /// except the domain's broker_record. In the same journal, which then changes only where it
  /// differs; in a new one if the journal has refused a change. This is still behind if that fails,
  /// and as long as the keeper has not confirmed the new one: call it again, after `retry_pause`.
  /// Does not block.
  template <typename Record>
  void catch_up(Record&& record) noexcept {
    if (begin_all()) {
      record();
      end_all();
    }
  }
  [[nodiscard]] std::chrono::milliseconds retry_pause() const noexcept { return retry_pause_; }

 private:
  struct parts {
    parts(journal::journal journal, descriptor_shelf keeper)
        : log(std::move(journal)), shelf(std::move(keeper)) {}
    journal::journal log;
    descriptor_shelf shelf;
    records::encoder encoder;
    std::vector<records::descriptor_id> to_forget;  ///< after the next commit
    std::vector<std::uint64_t> old_journals;        ///< to remove from the keeper
    /// Written by `catch_up` in the place of `log`, which has refused a change. It is complete, and
    /// newer than `log`, before the keeper gets it, so that a successor may use either.
    std::optional<journal::journal> next;
    std::optional<base::unique_fd> reply;  ///< of the keeper, about `next`
    bool is_next_stored = false;           ///< the keeper has confirmed it
  };
  /// The part of the keeper's capacity that is not charged to members is larger.
  static constexpr std::size_t max_to_forget = 64;
  using clock = std::chrono::steady_clock;
  std::uint64_t begin_step(std::uint64_t step) noexcept {
    return on_ ? std::exchange(on_->log.notes().handling, step) : 0;
  }
  void end_step(std::uint64_t step, std::uint64_t outer) noexcept;
  template <typename Make>
  void put_bytes(const journal::record_key& key, Make&& make) noexcept;
  [[nodiscard]] bool begin_all() noexcept;
  void end_all() noexcept;
  void write() noexcept;
  void raise_reader(std::uint32_t needed) noexcept;
  void store_next() noexcept;
  void use_next();
  void drop_next() noexcept;
  void put_off(const error* why) noexcept;

  std::unique_ptr<parts> on_;
  transport::reported_call call_{};
  std::uint64_t next_packet_ = 1;
  std::uint32_t min_reader_ = 1;  ///< as put into the domain's broker_record
  bool is_behind_ = false;
  bool has_warned_ = false;  ///< that the journal cannot be replaced
  bool is_full_ = false;     ///< the journal has refused a change: it must be replaced
  std::chrono::milliseconds retry_pause_ = first_retry_pause;
  std::chrono::milliseconds refusal_pause_ = first_retry_pause;  ///< after the keeper's last reply
  // ---- of a keeper that does not read
  std::optional<clock::time_point> busy_since_;
  clock::time_point last_busy_;

  /// Longer and longer for a new journal: each attempt writes all records.
  static constexpr std::chrono::milliseconds first_retry_pause{10};
  static constexpr std::chrono::milliseconds first_reply_pause{1};
  static constexpr std::chrono::milliseconds longest_retry_pause{1'000};
};

}  // namespace gpushm::succession
