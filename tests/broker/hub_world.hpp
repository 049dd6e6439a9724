// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "broker/hub/hub.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::broker_detail::testing_world {

[[nodiscard]] inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

[[nodiscard]] inline base::unique_fd memfd(std::uint64_t bytes,
                                           int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) {
  base::unique_fd fd(::memfd_create("hub-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

template <typename... Fds>
[[nodiscard]] std::vector<base::unique_fd> descriptors(Fds... fds) {
  std::vector<base::unique_fd> result;
  (result.push_back(std::move(fds)), ...);
  return result;
}

/// A packet as a client receives it.
struct arrived {
  wire::message message;
  std::vector<int> descriptors;  ///< open as long as `files`
  std::shared_ptr<const segment_files> files;
  std::shared_ptr<const succession::kept_fd> own;
  bool on_event_lane = false;
  std::optional<std::uint64_t> subscription;
};

class recorded_outbox final : public outbox {
 public:
  void send(session& target, prepared prepared) noexcept override {
    if (prepared.empty()) {
      return;
    }
    ASSERT_EQ(prepared.size(), 1U);
    outgoing& packet = prepared.front();
    EXPECT_FALSE(is_dropped(target.number)) << "sent to a dropped session";
    const std::vector<std::byte> bytes = packet.encode();
    EXPECT_LE(bytes.size(), wire::max_packet_bytes);
    EXPECT_GT(packet.cost(), 0U);
    EXPECT_LE(packet.descriptors.size(), wire::max_batch);
    for (const int fd : packet.descriptors) {
      EXPECT_NE(::fcntl(fd, F_GETFD), -1);
    }
    auto message = wire::decode(bytes);
    ASSERT_TRUE(message);
    sent[target.number].push_back({std::move(*message),
                                   std::move(packet.descriptors),
                                   std::move(packet.files),
                                   std::move(packet.own),
                                   packet.on_event_lane,
                                   packet.subscription});
    events[target.number] += packet.on_event_lane ? 1U : 0U;
  }
  void deliver() noexcept override {}
  void record(const session& /*session*/) noexcept override {}
  void record_all(session& /*session*/) noexcept override {}
  void retry_recording() noexcept override { ADD_FAILURE() << "nothing is recorded"; }
  /// No socket: any file stands for the client's end.
  succession::kept_fd open_event_lane(session& /*session*/) override {
    return base::guarded_fd::open([] { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); });
  }
  std::uint64_t events_queued(const session& session) const noexcept override {
    const auto at = events.find(session.number);
    return at == events.end() ? 0 : at->second;
  }
  bool takes_event(const session& session, std::uint64_t /*subscription*/) const noexcept override {
    return full.count(session.number) == 0;
  }
  void lose_event(session& session, std::uint64_t subscription) noexcept override {
    lost_events.emplace_back(session.number, subscription);
  }
  void drop(session& session, std::string_view why) noexcept override {
    EXPECT_FALSE(why.empty());
    EXPECT_FALSE(is_dropped(session.number)) << "twice";
    dropped.push_back(session.number);
  }
  void fence_of(session& session,
                fence kind,
                succession::kept_fd pidfd,
                succession::kept_fd life) override {
    EXPECT_TRUE(pidfd && life);
    fences[session.number] = kind;
  }
  [[nodiscard]] bool is_dropped(core::session_id number) const {
    return std::find(dropped.begin(), dropped.end(), number) != dropped.end();
  }

  std::map<core::session_id, std::vector<arrived>> sent;
  std::map<core::session_id, std::uint64_t> events;
  std::set<core::session_id> full;  ///< their queues have no room for events
  std::vector<std::pair<core::session_id, std::uint64_t>> lost_events;
  std::vector<core::session_id> dropped;
  std::map<core::session_id, fence> fences;
};

class hub_test : public testing::Test {
 protected:
  static constexpr std::uint32_t broker_uid = 42;

  explicit hub_test(const core::limits& bounds = {},
                    std::shared_ptr<closer> closes = nullptr,
                    succession::recorder* records = nullptr,
                    core::saved_state* saved = nullptr)
      : before_(open_descriptors()),
        state_table_(memfd(4096, 0)),
        hub_(
            {{"default", broker_uid, {1, 2, 3}, false, state_table_.get()},
             bounds,
             nullptr,
             std::move(closes),
             records,
             nullptr,
             saved},
            out_,
            [](void* context,
               std::uint32_t slot,
               gpushm::generation generation,
               std::optional<segment_state> state) {
              auto& slots = static_cast<hub_test*>(context)->slots_;
              if (state) {
                slots[slot] = {generation, *state};
              } else {
                slots.erase(slot);
              }
            },
            this) {}

  /// Expects that everything is freed; call at the end.
  void expect_nothing_left() {
    for (core::session_id session = 1; session < next_session_; ++session) {
      hub_.hang_up(session);
    }
    while (hub_.has_work()) {
      hub_.work();
    }
    out_.sent.clear();
    EXPECT_EQ(hub_.domain().segment_count(), 0U);
    EXPECT_EQ(hub_.domain().session_count(), 0U);
    EXPECT_EQ(hub_.domain().descriptors(), 0U);
    EXPECT_TRUE(slots_.empty());
    EXPECT_EQ(open_descriptors(), before_ + 1);  // the state table
  }

  core::session_id accept(const core::peer& peer = {101, 1000, true}) {
    hub_.accept(std::make_shared<session>(next_session_), peer);
    return next_session_++;
  }
  core::session_id greet(const core::peer& peer = {101, 1000, true}) {
    const auto session = accept(peer);
    const auto replies = round_trip(session, wire::hello{});
    EXPECT_EQ(replies.size(), 1U);
    EXPECT_TRUE(std::holds_alternative<wire::welcome>(replies.at(0).message.body));
    return session;
  }

  /// Sends a request. Returns the packets sent to that session since the last call.
  std::vector<arrived> round_trip(core::session_id session,
                                  wire::body body,
                                  std::vector<base::unique_fd> fds = {}) {
    send_request(session, std::move(body), std::move(fds));
    return take(session);
  }
  std::uint64_t send_request(core::session_id session,
                             wire::body body,
                             std::vector<base::unique_fd> fds = {}) {
    const auto lane = wire::is_sent_on_event_lane(body) ? lane_kind::events : lane_kind::requests;
    receive(session, wire::encode({++request_, std::move(body)}), std::move(fds), lane);
    return request_;
  }
  void receive(core::session_id number,
               const std::vector<std::byte>& packet,
               std::vector<base::unique_fd> fds = {},
               lane_kind lane_kind = lane_kind::requests) {
    session& from = *hub_.find(number);
    hub_.receive(
        from, packet, succession::not_kept(base::guard_all(std::move(fds))), now_, 0, lane_kind);
    while (from.rest || from.resumes) {
      hub_.resume(from);
    }
  }
  [[nodiscard]] bool lose(core::session_id number) { return hub_.lose(*hub_.find(number), now_); }
  std::vector<arrived> take(core::session_id session) {
    return std::exchange(out_.sent[session], {});
  }

  /// Expects a single answer, of that kind.
  template <typename Kind>
  Kind expect(const std::vector<arrived>& replies) {
    EXPECT_EQ(replies.size(), 1U);
    if (replies.size() != 1 || !std::holds_alternative<Kind>(replies[0].message.body)) {
      if (!replies.empty()) {
        const auto* why = std::get_if<wire::failure>(&replies[0].message.body);
        ADD_FAILURE() << "another answer" << (why != nullptr ? ": " + why->cause : "");
      }
      return {};
    }
    EXPECT_EQ(replies[0].message.id, request_);
    return std::get<Kind>(replies[0].message.body);
  }
  /// Expects a single failure; returns "code: cause (next step)".
  std::string failure(const std::vector<arrived>& replies) {
    const auto why = expect<wire::failure>(replies);
    return std::string(to_string(why.code)) + ": " + why.cause + " (" + why.next_step + ")";
  }

  gpushm::generation reserve(core::session_id session,
                             const std::string& name,
                             std::uint32_t chunks = 1,
                             lifetime kept = lifetime::leased,
                             std::uint64_t chunk_bytes = 4096) {
    return expect<wire::reserved>(round_trip(session,
                                             wire::reserve{name,
                                                           chunks * chunk_bytes,
                                                           chunks * chunk_bytes,
                                                           {},
                                                           chunks,
                                                           backend::host,
                                                           kept}))
        .generation;
  }
  gpushm::generation make(core::session_id session,
                          const std::string& name,
                          lifetime kept = lifetime::leased) {
    const auto generation = reserve(session, name, 1, kept);
    expect<wire::done>(
        round_trip(session, wire::attach{generation, 0, {4096}}, descriptors(memfd(4096))));
    expect<wire::done>(round_trip(session, wire::publish{generation, {}}));
    return generation;
  }

  std::size_t before_;
  base::unique_fd state_table_;
  recorded_outbox out_;
  std::map<std::uint32_t, std::pair<gpushm::generation, segment_state>> slots_;
  hub hub_;
  core::time_point now_{};
  core::session_id next_session_ = 1;
  std::uint64_t request_ = 0;
};

}  // namespace gpushm::broker_detail::testing_world
