// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "core/saved_state.hpp"
#include "succession/descriptor_store/inherited_descriptors.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/kept_fd.hpp"
#include "succession/records/records.hpp"

namespace gpushm::succession {

/// In a row. With the keeper's pauses, more than a minute.
inline constexpr std::uint32_t max_failed_starts = 30;
/// In a row, in steps of one kind for one session.
inline constexpr std::uint32_t max_deaths = 3;

/// Descriptors by their numbers in the keeper. Those that are not taken may be connections with
/// unread descriptors of members, whose close may block: the destructor leaves it to another thread
/// (own_table.hpp). Move-only.
class stored_files {
 public:
  stored_files() = default;
  stored_files(stored_files&&) = default;
  stored_files& operator=(stored_files&&) = delete;
  stored_files(const stored_files&) = delete;
  stored_files& operator=(const stored_files&) = delete;
  ~stored_files();

  void add(records::descriptor_id number, base::unique_fd file);
  /// Returns an empty object if there is none with this number.
  [[nodiscard]] base::unique_fd take(records::descriptor_id number);
  [[nodiscard]] std::vector<records::descriptor_id> numbers() const;

 private:
  std::unordered_map<records::descriptor_id, base::unique_fd> files_;
};

/// What a predecessor has left of one domain: its journal and its descriptors.
struct takeover_state {
  /// Reads the journal, and records the effect of the system call in which the predecessor was
  /// killed. Throws `error`: invalid_argument, also if as many brokers as `max_failed_starts` have
  /// ended while they continued this domain; unsupported_version, and nothing is changed: only a
  /// later version can continue it.
  takeover_state(journal::journal journal, stored_files left);

  /// The descriptor with this number; empty if there is none.
  [[nodiscard]] kept_fd take(records::descriptor_id number);
  /// The highest number of files of ended segments, which the keeper may have removed: a new
  /// descriptor must not have one of them.
  [[nodiscard]] records::descriptor_id last_freed() const noexcept;
  /// Larger than the number of every session that was, and of every packet here.
  [[nodiscard]] core::session_id next_session() const noexcept;
  [[nodiscard]] std::uint64_t next_packet() const noexcept;

  journal::journal log;
  stored_files descriptors;
  std::vector<records::descriptor_id> stored;  ///< numbers of all `descriptors` at first
  /// The session in whose steps the last broker and those before it have died; nullopt: none.
  std::optional<core::session_id> suspect;
  records::broker_record broker;
  core::saved_state state;
  std::map<core::session_id, records::connection_record> connections;
  std::map<core::session_id, records::open_rest_record> rests;
  std::map<core::session_id, records::lane_record> lanes;
  bool are_events_left = false;  ///< subscribers have not got all that are about its last changes
  std::map<gpushm::generation, records::files_record> files;
  /// Segments that have ended, and whose files may not all be closed.
  std::map<gpushm::generation, core::saved_segment> freeing;
  std::map<std::uint64_t, records::packet_record> packets;
  std::set<std::pair<core::session_id, std::uint64_t>> handled;  ///< and its lane: 1 event lane

 private:
  void check_reader() const;
  void read();
  void read_notes();
  void finish_call();
};

/// The inherited descriptors of each domain, by its short name. Nothing: there is no journal that
/// can be read, and why is logged; the domain cannot be continued. Other descriptors are closed, by
/// another thread. Does not block. Throws `error` and std::bad_alloc if one cannot be read now, but
/// perhaps later.
[[nodiscard]] std::map<std::string, std::optional<takeover_state>> read_takeover_states(
    std::vector<keeper::named_descriptor> inherited);

}  // namespace gpushm::succession
