// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/hub/closer.hpp"
#include "broker/hub/hub.hpp"
#include "broker/server/admission.hpp"
#include "broker/session/sender.hpp"
#include "broker/session/session_ender.hpp"
#include "broker/session/turn_loop.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/state_table_file.hpp"
#include "succession/recorder/takeover_state.hpp"

namespace gpushm::broker_detail {

/// Continues a domain that a predecessor has left: gives the segments and sessions, which the hub's
/// domain has already, their descriptors, queues and watches.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Used before the broker's thread
/// runs.
class restorer {
 public:
  /// All must outlive this object.
  restorer(succession::takeover_state& state,
           asio::io_context& io,
           hub& sessions,
           succession::state_table_file& table,
           succession::recorder& records,
           std::shared_ptr<closer> files,
           turn_loop& loop,
           session_ender& ends,
           sender& sends,
           admission& entry,
           std::uint32_t max_inflight_descriptors)
      : from_(state),
        io_(io),
        hub_(sessions),
        table_(table),
        recorder_(records),
        closer_(std::move(files)),
        loop_(loop),
        session_ender_(ends),
        sender_(sends),
        admission_(entry),
        max_inflight_descriptors_(max_inflight_descriptors) {}
  restorer(const restorer&) = delete;
  restorer& operator=(const restorer&) = delete;
  ~restorer() = default;

  /// Call once. A segment whose descriptors are not complete is removed; the sessions' tables are
  /// queued (`sender::deliver`). Throws std::bad_alloc.
  void restore();

 private:
  void restore_segment(gpushm::generation generation, const core::saved_segment& segment);
  void restore_session(core::session_id number, const core::saved_session& session);
  void restore_packet(std::uint64_t number, records::packet_record& record);
  void restore_freed(gpushm::generation generation, const core::saved_segment& segment);
  std::shared_ptr<const segment_files> orphans_of(const records::packet_record& record);
  void restore_events(connection& connection);
  void give_table(connection& connection);
  void drop_sessions();

  succession::takeover_state& from_;
  asio::io_context& io_;
  hub& hub_;
  succession::state_table_file& table_;
  succession::recorder& recorder_;
  std::shared_ptr<closer> closer_;
  turn_loop& loop_;
  session_ender& session_ender_;
  sender& sender_;
  admission& admission_;
  std::uint32_t max_inflight_descriptors_;

  std::vector<gpushm::generation> lost_;                  ///< segments whose memory is not complete
  std::map<core::session_id, std::string_view> dropped_;  ///< cannot be continued, and why
  std::map<core::session_id, std::set<std::uint64_t>> places_;  ///< of recorded packets
  /// Chunks of segments that are freed: for packets that carry them, or to be closed.
  std::map<gpushm::generation, std::shared_ptr<segment_files>> orphans_;
};

}  // namespace gpushm::broker_detail
