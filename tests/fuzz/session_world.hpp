// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "broker/hub/hub.hpp"
#include "tests/fuzz/descriptor_pool.hpp"
#include "tests/fuzz/session_script.hpp"

namespace gpushm_fuzz {

/// Several clients of a broker without I/O that act as a script says. Aborts the program unless
/// each open gets one reply, and no resources are left once all clients have disconnected and the
/// persistent segments are removed.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class session_world : public gpushm::broker_detail::outbox {
 public:
  session_world();
  session_world(const session_world&) = delete;
  session_world& operator=(const session_world&) = delete;
  ~session_world() override = default;

  /// Runs the whole script, ends all sessions and checks what is left.
  void run(script& script);

  void lose_event(gpushm::broker_detail::session& session,
                  std::uint64_t subscription) noexcept override;
  void send(gpushm::broker_detail::session& target,
            gpushm::broker_detail::prepared prepared) noexcept override;
  void deliver() noexcept override {}
  void record(const gpushm::broker_detail::session& /*session*/) noexcept override {}
  void record_all(gpushm::broker_detail::session& /*session*/) noexcept override {}
  void retry_recording() noexcept override;
  gpushm::succession::kept_fd open_event_lane(gpushm::broker_detail::session& session) override;
  [[nodiscard]] std::uint64_t events_queued(
      const gpushm::broker_detail::session& session) const noexcept override;
  void fence_of(gpushm::broker_detail::session& session,
                gpushm::fence kind,
                gpushm::succession::kept_fd pidfd,
                gpushm::succession::kept_fd life) override;
  void drop(gpushm::broker_detail::session& session, std::string_view why) noexcept override;

 protected:
  using session_id = gpushm::core::session_id;
  using descriptors = std::vector<gpushm::base::unique_fd>;

  /// What a client does that is neither about its connection nor about confirmations.
  virtual void act(script& script, session_id session);
  virtual gpushm::wire::hello some_hello(script& script);
  /// Before the broker receives a message.
  virtual void check_request(session_id /*session*/,
                             const gpushm::wire::message& /*request*/,
                             const descriptors& /*fds*/) {}
  /// For each packet that the broker sends.
  virtual void check_packet(session_id /*session*/,
                            const gpushm::wire::message& /*message*/,
                            const gpushm::broker_detail::outgoing& /*packet*/) {}
  /// After each packet that the broker has handled, and after each step.
  virtual void check_state() {}

  /// A successor that reads the records of the domain has the same state, charged the same.
  void check_records() const;

  [[nodiscard]] const gpushm::core::domain& domain() const noexcept { return hub_.domain(); }
  /// The segment if the session holds it; else null.
  [[nodiscard]] const gpushm::core::segment* segment_of(session_id session,
                                                        gpushm::generation generation) const;
  /// Those that the broker has returned, the newest last.
  [[nodiscard]] const std::vector<gpushm::generation>& generations() const noexcept {
    return generations_;
  }
  /// The connection has been closed, or will be at the end of the current packet.
  [[nodiscard]] bool is_gone(session_id session) const { return gone_.count(session) != 0; }
  /// Packets that were sent keep their files, and what those are charged, until they are read.
  [[nodiscard]] bool has_unread_packets() const noexcept { return !packets_.empty(); }
  void read_packets() noexcept { packets_.clear(); }
  [[nodiscard]] static descriptors some_descriptors(script& script, std::size_t count, bool of_gpu);
  void send_message(
      session_id session,
      const gpushm::wire::body& body,
      descriptors fds,
      gpushm::broker_detail::lane_kind kind = gpushm::broker_detail::lane_kind::requests);

 private:
  static void slot_changed(void* self,
                           std::uint32_t slot,
                           gpushm::generation generation,
                           std::optional<gpushm::segment_state> state);
  void step(script& script);
  void finish();
  void connect(script& script, session_id& session, bool is_greeting);
  void greet(script& script, session_id session);
  void confirm(script& script, session_id session);
  /// The request id of one of the latest opens of `session`; 0 if it has none.
  [[nodiscard]] std::uint64_t some_open_of(session_id session, std::uint64_t back) const;
  void send_raw(session_id session, std::span<const std::byte> bytes, descriptors fds);
  void receive(
      session_id session,
      const std::vector<std::byte>& packet,
      descriptors fds,
      gpushm::broker_detail::lane_kind lane_kind = gpushm::broker_detail::lane_kind::requests);
  void lose_dropped();
  void work();
  void remove_remaining();
  // Of each packet that is sent.
  void check_opened(const gpushm::wire::opened& reply, std::size_t descriptors);
  void check_questions(session_id session, const gpushm::wire::confirm& query);
  void count_reply(session_id session,
                   const gpushm::wire::message& message,
                   const gpushm::broker_detail::outgoing& packet);

  std::array<session_id, 4> sessions_{};
  session_id next_session_ = 1;
  std::uint64_t next_request_;
  gpushm::core::time_point now_{};
  std::vector<gpushm::generation> generations_;
  std::vector<gpushm::wire::session_token> tokens_;
  /// Keep files open until the packets are destroyed.
  std::vector<gpushm::broker_detail::outgoing> packets_;
  std::set<session_id> dropped_;
  std::vector<session_id> to_lose_;  ///< sessions dropped since the last packet
  std::set<session_id> gone_;
  std::set<std::pair<session_id, std::uint64_t>> opens_;
  std::map<session_id, std::set<std::pair<std::uint64_t, std::uint32_t>>> awaiting_reply_;
  /// Requested confirmations: the exporter's session, and the generation.
  std::map<std::uint64_t, std::pair<session_id, gpushm::generation>> questions_;
  /// Names of opens that were reported as waiting.
  std::set<std::tuple<session_id, std::uint64_t, std::uint32_t>> waits_;
  std::map<std::pair<session_id, std::uint64_t>, std::uint64_t> cancels_;
  std::map<session_id, std::uint64_t> events_;  ///< packets on the event lane
  std::multiset<gpushm::generation> agreed_;    ///< confirmed by the current packet
  std::map<std::uint32_t, gpushm::generation> slots_;
  gpushm::broker_detail::hub hub_;
};

}  // namespace gpushm_fuzz
