// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/guarded_fd.hpp"
#include "client/session/connection.hpp"
#include "client/session/reply.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpu/memory/sources/source.hpp"
#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

class lease_table;
class mapping;
/// True if its memory still exists.
[[nodiscard]] bool is_usable(const mapping& mapping) noexcept;

/// This process's lease on one generation, shared by all its users in the process; ends with the
/// last of them. Created by `lease_table`.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class segment_lease {
 public:
  /// A broker's reply on a segment.
  struct facts {
    wire::segment segment;
    std::vector<std::byte> metadata = {};
    std::vector<std::byte> ticket = {};
    std::optional<wire::receipt> receipt = {};
    bool is_creator = false;
  };
  /// Takes over the grant of one reply. It removes itself from `table` when it ends.
  segment_lease(std::weak_ptr<lease_table> table,
                std::shared_ptr<connection> broker,
                facts&& facts);
  segment_lease(const segment_lease&) = delete;
  segment_lease& operator=(const segment_lease&) = delete;
  ~segment_lease();

  /// Whether this client has created the segment.
  [[nodiscard]] bool is_creator() const noexcept { return is_creator_; }
  /// As in the first reply; never changes. `generation` has the current generation.
  [[nodiscard]] const wire::segment& info() const noexcept { return info_; }
  /// Another one after `set_aside` and `renew`.
  [[nodiscard]] gpushm::generation generation() const noexcept {
    const reader reading(*this);
    return now().generation;
  }
  /// The connection that has the lease: another one after the broker ended the first.
  [[nodiscard]] std::shared_ptr<connection> broker() const noexcept {
    const reader reading(*this);
    return now().broker;
  }
  /// As `broker`, and where its state table has the segment.
  [[nodiscard]] std::pair<std::shared_ptr<connection>, std::uint32_t> where() const {
    const reader reading(*this);
    return {now().broker, now().slot};
  }
  [[nodiscard]] segment_state state() const noexcept {
    const reader reading(*this);
    return state_in_table();
  }

  // Called by the lease table with its lock held: the lease does not move meanwhile.

  [[nodiscard]] connection& broker_in_table() const noexcept { return *now().broker; }
  [[nodiscard]] segment_state state_in_table() const noexcept {
    const place& at = now();
    return at.broker->state(at.slot, at.generation);
  }

  /// A word of the broker's state table by which a name other than the segment's own, an alias,
  /// refers to this segment: its slot, and the generation that the word shows until it moves.
  struct name_word {
    std::uint32_t slot = 0;
    gpushm::generation shows = 0;
  };
  /// Such a word of the broker that has the lease.
  struct seen_word {
    name_word word;
    std::uint32_t moves = 0;  ///< of the lease, when it was seen
  };
  [[nodiscard]] seen_word see(const name_word& word) const noexcept { return {word, now().moves}; }
  /// One load of the table. False also once another broker has the lease: its slots are others.
  [[nodiscard]] bool still_shows(const seen_word& seen) const noexcept {
    const place& at = now();
    return at.moves == seen.moves &&
           at.broker->state(seen.word.slot, seen.word.shows) == segment_state::live;
  }

  /// As the creator sent it to the broker; empty for memory that is shared as descriptors.
  [[nodiscard]] const std::vector<std::byte>& ticket() const noexcept { return ticket_; }

  /// Empty until published; the span is valid until the lease ends.
  [[nodiscard]] std::span<const std::byte> metadata() const;
  [[nodiscard]] bool published() const noexcept {
    return published_.load(std::memory_order_acquire);
  }
  /// Publishes at the broker, and stores the metadata. Blocks until the broker replies. Throws as a
  /// request.
  void publish(std::span<const std::byte> metadata,
               std::string_view operation,
               steady_time deadline);
  /// The creator's process receives it twice: with the reply to `Publish`, and with a reply to
  /// `Open` that may arrive first. Later calls have no effect.
  void set_published(std::vector<std::byte> metadata);

  /// Its next segment is not published, so that there is other metadata then. Precondition: set
  /// aside.
  void unpublish() noexcept { published_.store(false, std::memory_order_release); }

  /// Another reply of the broker granted this lease.
  void add_grant();
  [[nodiscard]] std::uint32_t grants() const;
  /// Where the broker has it.
  struct place {
    std::shared_ptr<connection> broker;
    std::uint32_t slot;
    std::uint32_t moves;  ///< of the lease before
    gpushm::generation generation;
  };
  /// Moves the lease to the connection `successor`, which receives the broker's questions from now
  /// on. Returns previous places, which threads no longer read, to be destroyed without a lock: a
  /// connection waits for its threads. Called with the table's lock held.
  [[nodiscard]] std::list<place> move_to(std::shared_ptr<connection> successor);
  /// Number of connections that it keeps; after a move, more than one only while other threads read
  /// a previous one.
  [[nodiscard]] std::size_t connections() const;

  // ---- after the death of a broker and its keeper (handback.hpp) ----

  /// What another broker grants in place of a lease that was lost.
  struct renewal {
    std::uint32_t slot = 0;
    std::optional<wire::receipt> receipt;
    gpushm::generation generation = 0;  ///< 0: the same; another one if the lease was set aside
  };
  /// Answers questions of the broker of `successor` about memory that this process shares, already
  /// before the lease is renewed there.
  void reply_on(connection& successor) const;
  /// As `move_to`, with one grant.
  [[nodiscard]] std::list<place> renew(std::shared_ptr<connection> successor,
                                       const renewal& renewal);
  /// Ends the lease at the broker, and the kept descriptors; this object is for `renew` then.
  /// Called by the lease table.
  void set_aside() noexcept;
  /// Lost with its broker, and not known to be gone.
  [[nodiscard]] bool is_lost() const;
  /// It will not be renewed.
  void give_up() noexcept { given_up_.store(true, std::memory_order_relaxed); }
  /// The descriptors of all chunks, for another broker.
  struct kept_chunks {
    std::vector<std::uint64_t> bytes = {};  ///< of `files`
    std::vector<base::guarded_fd> files = {};
    held_descriptors::part held = {};
    /// Throws too_many_descriptors, system_error.
    [[nodiscard]] memory::chunk_source::chunk copy(std::size_t index, std::string_view name) const;
  };
  /// Starts to keep chunks, for `finish_keeping`; nullopt if this process cannot hand the segment
  /// back, already keeps them, or has no room for the descriptors.
  [[nodiscard]] std::optional<kept_chunks> begin_keeping();
  void finish_keeping(kept_chunks chunks) noexcept;
  /// A copy of a chunk that is kept; nullopt if none are. Throws too_many_descriptors,
  /// system_error.
  [[nodiscard]] std::optional<memory::chunk_source::chunk> copy_kept(std::uint32_t index) const;
  /// For the descriptors of all chunks; empty: there is no room.
  [[nodiscard]] held_descriptors::part room_for_chunks() const;
  /// What to send, and the descriptors; nullopt if this process cannot hand it back. They are valid
  /// as long as this object exists.
  [[nodiscard]] std::optional<std::pair<wire::reserve, const kept_chunks*>> to_hand_back() const;

  /// Returns this process's mapping for this device and access, or the result of `make()`. While
  /// one thread creates a mapping, others that need one of this segment wait.
  template <typename Make>
  [[nodiscard]] std::shared_ptr<mapping> find_or_map(const std::string& device,
                                                     gpushm::access access,
                                                     Make&& make) {
    const std::lock_guard lock(map_mutex_);
    std::weak_ptr<mapping>& entry = mappings_[{device, access}];
    if (auto found = entry.lock(); found && is_usable(*found)) {
      return found;
    }
    auto created = make();
    entry = created;
    mapped_.store(true, std::memory_order_relaxed);
    return created;
  }

  /// Whether this process has a mapping of it besides `mapping`.
  [[nodiscard]] bool has_other_mappings(const mapping& mapping);
  /// Adds the first mapping of a new lease.
  void put(const std::shared_ptr<mapping>& created);
  /// It is used otherwise than by a mapping.
  void note_used() noexcept { mapped_.store(true, std::memory_order_relaxed); }

  /// Registers this process's memory of the segment: the broker's questions about it are answered
  /// as long as this lease exists, or until `unshare`.
  void share(std::shared_ptr<const memory::source> memory);
  /// Ends sharing: no new importer gets the memory, and questions about it are no longer answered.
  /// Blocks until the broker replies. Throws invalid_argument if this process does not share it,
  /// and as a request.
  void unshare(steady_time deadline);
  /// Returns null for segments that this process does not share.
  [[nodiscard]] std::shared_ptr<const memory::source> shared_memory() const;

 private:
  /// A thread that reads `now` without the table's lock. Sequentially consistent with `go_to`,
  /// which stores `now_` before it looks for readers: either it sees this one, or this one the new
  /// place.
  class reader {
   public:
    explicit reader(const segment_lease& lease) noexcept : of_(lease) { of_.readers_.fetch_add(1); }
    reader(const reader&) = delete;
    reader& operator=(const reader&) = delete;
    ~reader() { of_.readers_.fetch_sub(1); }

   private:
    const segment_lease& of_;
  };
  [[nodiscard]] const place& now() const noexcept { return *now_.load(); }
  // With the lock held.
  [[nodiscard]] std::list<place> go_to(std::shared_ptr<connection> successor,
                                       std::uint32_t slot,
                                       gpushm::generation generation);
  void register_reply(connection& connection) const;
  void stop_sharing() noexcept;

  std::weak_ptr<lease_table> table_;
  wire::segment info_;
  std::vector<std::byte> ticket_;
  const bool is_creator_;
  mutable std::mutex mutex_;
  std::list<place> places_;  ///< the last one, and earlier ones that readers may still use
  std::atomic<const place*> now_;
  mutable std::atomic<std::uint32_t> readers_{0};
  std::optional<wire::receipt> receipt_;
  kept_chunks kept_;
  bool keeps_all_ = false;
  std::atomic<bool> given_up_{false};
  std::uint32_t grants_ = 1;  ///< 0: set aside
  /// The last one is the segment's once `published_` is true; earlier ones are for spans.
  std::list<std::vector<std::byte>> metadata_;
  std::atomic<bool> published_;
  std::atomic<bool> mapped_{false};  ///< has been mapped at least once
  std::shared_ptr<const memory::source> shared_;
  std::mutex map_mutex_;  // held while the driver maps
  std::map<std::pair<std::string, gpushm::access>, std::weak_ptr<mapping>> mappings_;
};

}  // namespace gpushm::client_detail
