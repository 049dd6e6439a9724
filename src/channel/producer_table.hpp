// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "channel/layout.hpp"
#include "channel/table.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::channel {

/// How a consumer gets items. On the wire: never renumber.
enum class consumer_mode : std::uint8_t {
  block = 0,   ///< each item; the producer waits for it
  latest = 1,  ///< the newest item; the producer does not wait
  share = 2,   ///< some of the items: each goes to one of these consumers
};

/// A consumer, as the producer sees it. Its timelines belong to another process: each is read once.
struct consumer_view {
  std::uint64_t id = 0;  ///< the generation of its timelines' segment
  consumer_mode mode = consumer_mode::block;
  std::uint32_t held = 0;   ///< timelines for items that it holds, if `latest`
  std::uint32_t depth = 0;  ///< items that it is given before it has released one, if `share`
  std::uint64_t start = 0;
  std::uint32_t entry = 0;  ///< in the table
  std::uint64_t given = 0;  ///< items, if `share`: counted from what its entry had before
  const sync::timeline_page* page = nullptr;
  std::uint32_t first_timeline = 0;

  [[nodiscard]] sync::timeline_reader timeline(std::uint32_t index) const noexcept {
    return {*page, first_timeline + index};
  }
};

/// The producer's part of a channel's protocol: slots, rows, order and consumers. It has no waits
/// and no streams, and makes no system calls but wakes. The steps and their order are those of the
/// model (tests/model/channel.pml).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class producer_table {
 public:
  struct shape {
    std::uint32_t slots = 0;
    std::uint64_t slot_bytes = 0;
    std::uint64_t slot_stride = 0;
    std::uint64_t segment = 0;  ///< the generation of the slots' segment
  };
  /// A new channel. Precondition: `page` and `table`, `page_bytes(slots)` in all, are zero.
  producer_table(sync::timeline_page& page, std::byte* table, const shape& shape);
  /// Continues after a producer whose timelines have ended. Items up to its last announced one are
  /// not used again. If `shape.segment` is not that producer's segment, its items are in no slot.
  producer_table(sync::timeline_page& page,
                 std::byte* table,
                 const shape& shape,
                 const table_view& previous);

  struct choice {
    std::uint32_t slot = 0;
    /// Consumers that get every item must have taken, and finished with, items up to this; 0: none.
    std::uint64_t after = 0;
  };
  /// Returns the oldest slot that is not acquired, that no `latest` consumer holds, and that no
  /// `share` consumer has; nullopt if there is none. With `latest` consumers there is a slot for a
  /// first acquisition, and with more slots for more.
  [[nodiscard]] std::optional<choice> choose() const noexcept;
  /// Acquires a slot; several may be acquired at a time. Then the streams wait, and the slot is
  /// written. Returns false, and the row is as before, if a consumer holds the slot after all:
  /// choose again. Precondition: the slot was chosen, no slot was acquired since then, and the CPUs
  /// of `block` consumers have taken the items up to `after`.
  [[nodiscard]] bool acquire(const choice& choice) noexcept;
  /// Frees an acquired slot without an item.
  void abandon(const choice& choice) noexcept;
  /// Stores the metadata and the row of the item in an acquired slot, and returns its number;
  /// consumers do not look for it before it is announced. Then the store of `published_timeline` is
  /// enqueued on the stream. Preconditions: at most `max_metadata_bytes`; no other item is
  /// prepared.
  [[nodiscard]] std::uint64_t prepare(const choice& choice,
                                      std::span<const std::byte> metadata) noexcept;
  /// Undoes `prepare` after the stream has refused the store: the slot is still acquired, and the
  /// next item gets the number.
  void withdraw(const choice& choice) noexcept;
  /// Announces the prepared item to consumers.
  void announce(const choice& choice) noexcept;
  /// A timeline that has to reach a value before a chosen slot can be acquired.
  struct obstacle {
    const consumer_view* consumer = nullptr;  ///< whose timeline it is; null: this producer's
    std::uint32_t timeline = 0;
    std::uint64_t value = 0;
    /// The slot can also become free in another way: look at the table again soon.
    bool has_alternatives = false;
  };
  /// Returns the next timeline that the writer of `chosen` has to wait for; nullopt if there is
  /// none. `chosen`: the result of `choose`; nullopt if it chose no slot. `on_stream`: a stream
  /// writes the slot and waits for the releases itself. The result is valid until the consumers
  /// change.
  [[nodiscard]] std::optional<obstacle> next_obstacle(const std::optional<choice>& chosen,
                                                      bool on_stream) const noexcept;
  /// Returns how many items a `share` consumer was given and has not released.
  [[nodiscard]] static std::uint64_t unreleased(const consumer_view& consumer) noexcept;
  /// Returns a `block` consumer whose `timeline` has not reached `value`; null if there is none.
  [[nodiscard]] const consumer_view* find_behind(std::uint32_t timeline,
                                                 std::uint64_t value) const noexcept;
  /// The last good item of the previous producer; 0 if there was none.
  [[nodiscard]] std::uint64_t last_of_previous() const noexcept { return head_.last_of_previous; }
  /// Tells consumers that there are no more items.
  void close() noexcept;

  // ---- members ----

  /// Whether there is room for a consumer: at most `max_consumers`, and two slots more than
  /// `latest` consumers can hold.
  [[nodiscard]] bool has_room(const consumer_view& for_one) const noexcept;
  /// Adds a consumer, and stores where it starts. No effect if the table has no entry for it.
  /// Precondition: `has_room`.
  void add(consumer_view added);
  /// Stores that a consumer is refused.
  void refuse(std::uint64_t id, std::uint64_t why) noexcept;
  /// Removes a consumer, and reassigns the unreleased items of a `share` consumer to another one,
  /// if any.
  void drop(std::uint64_t id) noexcept;
  [[nodiscard]] const std::vector<consumer_view>& consumers() const noexcept { return consumers_; }
  /// Whether the timelines of a `block` consumer are possible. Those of an honest consumer always
  /// are.
  [[nodiscard]] bool is_plausible(const consumer_view& view) const noexcept;

  [[nodiscard]] std::uint64_t announced() const noexcept { return next_ - 1; }
  [[nodiscard]] std::uint64_t first_item() const noexcept { return head_.first_item; }

 private:
  producer_table(sync::timeline_page& page,
                 std::byte* table,
                 const shape& shape,
                 std::uint64_t first_item,
                 std::uint64_t last_of_previous);
  struct last_items {
    std::uint64_t announced = 0;
    std::uint64_t good = 0;
  };
  producer_table(sync::timeline_page& page,
                 std::byte* table,
                 const shape& shape,
                 const table_view& previous,
                 const last_items& last);
  [[nodiscard]] static last_items last_of(const table_view& previous) noexcept;
  /// Whether the next item has to wait because each `share` consumer has as many items as it may.
  [[nodiscard]] bool is_work_full() const noexcept;
  struct held_items {
    std::array<std::uint64_t, std::size_t{max_consumers} * max_held> items{};
    std::size_t count = 0;
  };
  [[nodiscard]] held_items held_now() const noexcept;
  [[nodiscard]] bool is_named(std::uint32_t slot, const held_items& held) const noexcept;
  /// Returns the entry for a new consumer; nullopt if all are in use.
  [[nodiscard]] std::optional<std::uint32_t> entry_for(std::uint64_t id) const noexcept;
  void write_consumer(std::uint32_t entry, std::uint64_t id, std::uint64_t start) noexcept;
  [[nodiscard]] bool is_used(std::uint32_t slot) const noexcept;
  void give(std::uint32_t slot) noexcept;
  void read_contents(const table_view& previous);

  sync::timeline_page& page_;
  table_head& head_;
  std::span<row> rows_;
  std::span<std::atomic<std::uint32_t>> order_;
  std::span<std::atomic<std::uint32_t>> given_;
  struct content {
    std::uint64_t item = 0;  ///< 0: none, or not known
    bool is_acquired = false;
    std::uint64_t after = 0;  ///< consumers may still use items up to this in it
    std::uint64_t owner = 0;  ///< the `share` consumer that was given it; 0: none
    std::uint64_t count = 0;  ///< the number of this item among those that were given to it
  };
  std::vector<content> contents_;  ///< of the slots
  std::uint64_t next_;             ///< the number of the next item
  std::uint64_t turn_ = 0;         ///< among `share` consumers with equal room
  std::vector<consumer_view> consumers_;
};

}  // namespace gpushm::channel
