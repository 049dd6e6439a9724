// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files/file.hpp"
#include "client/lease/segment_lease.hpp"
#include "gpu/streams/registered_page.hpp"
#include "sync/timeline_page.hpp"

namespace gpushm::client_detail {

/// A timeline page with its lease: this process's page, mapped for writing, or that of another
/// process.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class mapped_page {
 public:
  /// Maps `file`. Throws as `base::map_file`.
  mapped_page(std::shared_ptr<segment_lease> lease, int file, bool is_own);
  /// Maps a page without a broker (local_pages.hpp). `file` is open for writing; `keeps` exists as
  /// long as this.
  mapped_page(int file, bool is_own, std::shared_ptr<const void> keeps);
  mapped_page(const mapped_page&) = delete;
  mapped_page& operator=(const mapped_page&) = delete;
  /// Does not wait for streams (gpu/streams/retired_pages.hpp).
  ~mapped_page();

  /// Precondition: the page has a broker.
  [[nodiscard]] const segment_lease& lease() const noexcept { return *lease_; }
  [[nodiscard]] bool is_own() const noexcept { return is_own_; }
  /// Whether the kernel lets this process write the page: its own page, a page without a broker, or
  /// any page if this process is root with its capabilities or has the broker's uid.
  [[nodiscard]] bool is_writable() const noexcept { return is_writable_; }
  [[nodiscard]] const sync::timeline_page& page() const noexcept { return *page_; }
  /// Precondition: it is this process's own.
  [[nodiscard]] sync::timeline_page& own_page() const noexcept { return *page_; }
  /// The memory behind the timelines: `extra_bytes`, from a page boundary.
  [[nodiscard]] std::byte* extra() const noexcept {
    return reinterpret_cast<std::byte*>(page_) + sync::timeline_page_bytes;
  }
  [[nodiscard]] std::size_t extra_bytes() const noexcept {
    return mapping_.get().size_bytes - sync::timeline_page_bytes;
  }
  /// The page as streams use it.
  [[nodiscard]] streams::registered_page& for_streams() noexcept { return *registered_; }

 private:
  std::shared_ptr<segment_lease> lease_;  // destroyed last
  std::shared_ptr<const void> keeps_;
  base::unique_mapping mapping_;
  sync::timeline_page* page_;
  bool is_own_;
  bool is_writable_;
  std::unique_ptr<streams::registered_page> registered_;
};

/// Timelines that follow each other in a mapped page, from the number `first` on.
struct timeline_range {
  std::shared_ptr<mapped_page> page;
  std::uint32_t first = 0;
};

/// The pages of a client's timelines: its own, with their free timelines, and those of other
/// processes that it has open.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class timeline_pages {
 public:
  timeline_pages() = default;
  timeline_pages(const timeline_pages&) = delete;
  timeline_pages& operator=(const timeline_pages&) = delete;
  ~timeline_pages() = default;

  /// Returns free timelines that follow each other. `make()` returns a new page; it is called,
  /// without a lock held, if no page has enough. The timelines that were released longest ago come
  /// first.
  template <typename Make>
  [[nodiscard]] timeline_range take(std::uint32_t count, Make&& make) {
    if (auto found = take_free(count)) {
      return std::move(*found);
    }
    return add(make(), count);
  }
  /// Frees timelines that were never published.
  void release(const timeline_range& range, std::uint32_t count) noexcept;
  /// Ends timelines that were published with `lease`. They are free when the broker has freed that
  /// segment, because then no process has it open.
  void end(const timeline_range& range,
           std::uint32_t count,
           const segment_lease& lease,
           sync::word_kind kind = sync::word_kind::ended) noexcept;

  /// Keeps a page that streams may still write, as long as this exists.
  void keep(std::shared_ptr<mapped_page> page) noexcept;

  /// Another process's page, or this client's own, of the broker with this epoch (others may have
  /// given the same generation before); null if it is not open.
  [[nodiscard]] std::shared_ptr<mapped_page> find(const epoch& broker,
                                                  gpushm::generation generation);
  /// Remembers an opened page as long as it is in use; returns the page that another thread has
  /// already added, if any.
  [[nodiscard]] std::shared_ptr<mapped_page> remember(std::shared_ptr<mapped_page> opened);

 private:
  struct ended_words {
    std::uint32_t first;
    std::uint32_t count;
    std::shared_ptr<connection> broker;
    std::uint32_t slot;
    gpushm::generation generation;
  };
  struct own {
    std::shared_ptr<mapped_page> page;
    std::deque<std::uint32_t> free;  ///< longest free first
    std::vector<ended_words> ended;
  };

  [[nodiscard]] std::optional<timeline_range> take_free(std::uint32_t count);
  [[nodiscard]] timeline_range add(std::shared_ptr<mapped_page> page, std::uint32_t count);
  [[nodiscard]] static std::optional<std::uint32_t> take_from(own& own_state, std::uint32_t count);
  static void collect_ended(own& own_state);
  [[nodiscard]] own* owner_of(const timeline_range& range) noexcept;

  std::mutex mutex_;
  std::vector<own> own_;
  std::map<gpushm::generation, std::weak_ptr<mapped_page>> others_;
  std::vector<std::shared_ptr<mapped_page>> kept_;
};

}  // namespace gpushm::client_detail
