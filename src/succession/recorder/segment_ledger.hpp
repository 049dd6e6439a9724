// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "core/domain.hpp"
#include "core/segment.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::succession {

/// HMAC-SHA256 of the bytes, with a key that no member can read. Must not throw. Thread-safe.
using authenticator = std::function<wire::receipt(std::span<const std::byte>)>;

/// Which file a timeline page is. No other one has it while the machine runs, so that nobody
/// can hand back another page in its place.
struct page_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;  ///< 0: not known
  [[nodiscard]] bool is_known() const noexcept { return inode != 0; }
  friend bool operator==(const page_identity&, const page_identity&) = default;
};
/// Not known if the file is none.
[[nodiscard]] page_identity page_identity_of(int file) noexcept;

/// A domain's segments in a file, which outlives the broker and its keeper (docs/adr/0031). If both
/// have died, the next broker of the domain reads from it what is missing, takes that back from
/// members that still have it, and reports the rest as lost. A segment that has been removed or
/// whose name another segment has taken is not missing.
///
/// The file says that a segment existed; a receipt says that a member had it. Without the file's
/// memory in tmpfs or on the disk, segments are served as always, but cannot be handed back.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class segment_ledger {
 public:
  /// How long a domain takes segments back after its start. Clients connect again within a second,
  /// unless they are stopped.
  static constexpr std::chrono::minutes default_return_time{5};
  /// How long only its signaler hands a timeline page back; at most half of that time.
  static constexpr std::chrono::seconds time_of_signalers{5};
  /// How long the name of a missing segment is kept for those that may hand it back.
  static constexpr std::chrono::seconds time_of_names{10};
  /// How long a member that is not the creator may be at handing a segment back, before it gives
  /// way to a member of another uid. Shorter than the time for which clients try.
  static constexpr std::chrono::seconds time_to_return{3};

  struct config {
    std::string path;
    std::string domain;
    authenticator code;
    /// The first generation of a new domain; nullopt if the domain and its file are continued.
    std::optional<gpushm::generation> first_generation;
    std::chrono::milliseconds return_time = default_return_time;
  };
  /// Reads the file; creates it if there is none, or none of this boot of the machine. Throws
  /// `errc::system_error`.
  explicit segment_ledger(config config);
  segment_ledger(segment_ledger&&) = default;
  segment_ledger& operator=(segment_ledger&&) = default;
  segment_ledger(const segment_ledger&) = delete;
  segment_ledger& operator=(const segment_ledger&) = delete;
  ~segment_ledger() = default;

  /// For a member of this uid that has the segment as its creator, or by an open.
  [[nodiscard]] wire::receipt receipt_for(std::string_view name,
                                          gpushm::generation generation,
                                          std::uint32_t uid,
                                          bool is_creator) const;
  /// The page that this segment is. Not known for other segments, and if an earlier version of the
  /// broker has made it.
  [[nodiscard]] page_identity page_of(gpushm::generation generation) const noexcept;
  /// Returns the segment that a member of this uid hands back by `offered`. Throws if it may not:
  /// permission_denied (no valid receipt, or leased memory that is another's; of a page of
  /// timelines only before `time_of_signalers`), gone_or_replaced (it is not missing),
  /// already_exists (it has been handed back).
  [[nodiscard]] core::lost_segment check_return(const wire::reserve& offered,
                                                std::optional<std::uint32_t> uid) const;
  /// Another member than its creator has begun to hand it back. Throws std::bad_alloc.
  void note_return(gpushm::generation generation, std::uint32_t uid);
  /// Whether that member has had its time, and gives way to one of `uid`.
  [[nodiscard]] bool is_overdue(gpushm::generation generation, std::uint32_t uid) const noexcept;
  /// For a new segment. Throws writer_ending if a missing segment has that name, `peer` is not a
  /// member that may manage that one, and `time_of_names` is not over.
  void check_name(std::string_view name, const core::peer& peer) const;
  /// Whether it was published and is not handed back completely: another member may start over.
  [[nodiscard]] bool is_missing(gpushm::generation generation) const noexcept;
  /// Throws permission_denied if a segment that is being handed back was published with other
  /// metadata.
  void check_publication(gpushm::generation generation, std::span<const std::byte> metadata) const;

  /// The segment is new or has changed. `page`: of a timeline page. What cannot be written is
  /// logged once.
  void note(const core::segment& segment, const page_identity& page = {}) noexcept;
  /// The segment has ended. One that was being handed back is missing again.
  void erase(gpushm::generation generation) noexcept;
  /// Changes have not been noted one by one: erases all but these and those that are missing.
  void erase_others(const std::unordered_set<gpushm::generation>& existing) noexcept;
  /// The segments of a continued domain have been noted: forgets others that are not missing.
  void end_continuing() noexcept;

  [[nodiscard]] std::size_t missing() const noexcept { return missing_.size(); }
  [[nodiscard]] core::time_point last_return() const noexcept { return last_return_; }
  /// What is still missing is lost: logs it.
  void give_up() noexcept;
  /// The domain is closed: removes the file.
  void end() noexcept;

  [[nodiscard]] std::uint64_t returned() const noexcept { return returned_; }
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

 private:
  struct row;
  struct place {
    std::uint32_t index = 0;  ///< of its row
    bool is_published = false;
    bool is_persistent = false;
    bool is_missing = false;
    bool has_page = false;
  };
  using places = std::unordered_map<gpushm::generation, place>;
  struct attempt {
    std::uint32_t uid = 0;
    core::time_point since;  ///< the first one of that uid in sequence
  };

  void open();
  void load();
  void add(const core::segment& segment, const page_identity& page);
  void write(std::uint32_t index, const row& row);
  [[nodiscard]] std::optional<row> read(std::uint32_t index) const noexcept;
  [[nodiscard]] row row_of(const core::segment& segment, const page_identity& page) const;
  /// The end of a time that begins with the domain.
  [[nodiscard]] core::time_point end_of(std::chrono::milliseconds time) const noexcept;
  [[nodiscard]] wire::receipt code_of_facts(const base::reservation& reservation,
                                            std::uint32_t creator_uid) const;
  [[nodiscard]] wire::receipt code_of_metadata(std::span<const std::byte> metadata) const;
  /// Not from `missing_`.
  void drop(places::iterator place) noexcept;
  void found(places::iterator place, const std::string& name) noexcept;
  /// Logs once how many segments have been handed back; `more`: how many are missing after that.
  void report_returned(const char* more) noexcept;
  void failed(const char* why) noexcept;

  config with_;
  base::unique_fd file_;
  gpushm::generation first_generation_ = 0;
  core::time_point last_return_{};
  places places_;
  std::map<std::string, gpushm::generation, std::less<>> missing_;  ///< by name
  /// Attempts to hand back missing segments by processes other than their creators.
  std::unordered_map<gpushm::generation, attempt> attempts_;
  std::vector<std::uint32_t> free_;
  std::uint32_t next_index_ = 0;
  std::uint64_t returned_ = 0;
  std::uint64_t lost_ = 0;
  bool is_continuing_ = false;
  bool has_failed_ = false;
  bool has_reported_returned_ = false;
};

}  // namespace gpushm::succession
