// SPDX-License-Identifier: Apache-2.0
// A script of actions of several clients against a broker without I/O. In every case each open gets
// one reply, and no resources are left once all clients have disconnected and the persistent
// segments are removed.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/segments/exporter_bound.hpp"
#include "broker/hub/hub.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/fuzz/require.hpp"
#include "tests/fuzz/session_script.hpp"

namespace {

using namespace gpushm;
using broker_detail::hub;
using broker_detail::outgoing;

constexpr std::uint32_t broker_uid = 42;
/// First id of the requests sent by this program; raw packets with such an id are not sent.
constexpr std::uint64_t first_request = std::uint64_t{1} << 40U;

/// One descriptor of each kind that a client may send.
class descriptor_pool {
 public:
  descriptor_pool() {
    add(memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    add(memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    add(memfd(4096, 0));
    add(memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    std::array<int, 2> ends{};
    GPUSHM_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    add(ends[0]);
    add(ends[1]);
    add(::open("/dev/null", O_RDWR | O_CLOEXEC));
    unnamed_ = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    GPUSHM_REQUIRE(unnamed_ >= 0 && ::ftruncate(unnamed_, 4096) == 0);
    add(unnamed_);
  }
  /// Mostly good ones: of host memory, or with `of_gpu` what the hub accepts as GPU memory.
  [[nodiscard]] base::unique_fd copy(std::uint8_t which, bool of_gpu) const {
    const int good = of_gpu ? unnamed_ : kinds_[0];
    base::unique_fd fd(
        ::fcntl(which < 200 ? good : kinds_[which % kinds_.size()], F_DUPFD_CLOEXEC, 0));
    GPUSHM_REQUIRE(fd);
    return fd;
  }

 private:
  static int memfd(off_t bytes, int seals) {
    const int fd = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    GPUSHM_REQUIRE(::ftruncate(fd, bytes) == 0);
    GPUSHM_REQUIRE(seals == 0 || ::fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  }
  void add(int fd) {
    GPUSHM_REQUIRE(fd >= 0);
    kinds_.push_back(fd);
  }
  std::vector<int> kinds_;
  int unnamed_ = -1;  // a tmpfs file; the hub accepts it as a chunk of the fake driver
};

const descriptor_pool& pool() {
  static const descriptor_pool instance;
  return instance;
}

std::size_t open_descriptors() {
  static std::array<pollfd, 512> descriptors = [] {
    std::array<pollfd, 512> result{};
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i].fd = static_cast<int>(i);
    }
    return result;
  }();
  GPUSHM_REQUIRE(::poll(descriptors.data(), descriptors.size(), 0) >= 0);
  return static_cast<std::size_t>(
      std::count_if(descriptors.begin(), descriptors.end(), [](const pollfd& entry) {
        return (entry.revents & POLLNVAL) == 0;
      }));
}

class world final : public broker_detail::outbox {
 public:
  world()
      : hub_({{"default", broker_uid, {1, 2, 3}, true, -1},
              {.max_segments = 8,
               .quota_bytes = 200'000,
               .quota_bytes_per_principal = 100'000,
               .max_descriptors = 400,
               .max_pending_opens = 4,
               .max_subscriptions = 3,
               .confirm_timeout = std::chrono::milliseconds(300),
               .max_dead_names = 2},
              nullptr,
              nullptr},
             *this,
             &world::slot_changed,
             this) {}

  void run(gpushm_fuzz::script& script) {
    while (!script.done()) {
      step(script);
    }
  }

  void finish() {
    // A far deadline: every open of a connected session has its reply.
    now_ += std::chrono::hours(1'000'000);
    hub_.tick(now_);
    GPUSHM_REQUIRE(hub_.domain().waiting_count() == 0);
    GPUSHM_REQUIRE(!hub_.next_deadline());
    for (const auto& [session, pending] : awaiting_reply_) {
      GPUSHM_REQUIRE(pending.empty() || gone_.count(session) != 0);
    }
    for (const auto session : sessions_) {
      if (session != 0) {
        hub_.hang_up(session);
      }
    }
    for (const auto session : gone_) {  // as if their fences had signalled
      hub_.hang_up(session);
    }
    GPUSHM_REQUIRE(hub_.domain().ending_count() == 0);
    work();
    GPUSHM_REQUIRE(hub_.domain().session_count() == 0);
    GPUSHM_REQUIRE(hub_.domain().descriptors() <= 400);
    remove_remaining();
    packets_.clear();
    GPUSHM_REQUIRE(hub_.domain().segment_count() == 0);
    GPUSHM_REQUIRE(hub_.domain().session_count() == 0);
    GPUSHM_REQUIRE(hub_.domain().allocated_bytes() == 0);
    GPUSHM_REQUIRE(hub_.domain().descriptors() == 0);
    GPUSHM_REQUIRE(slots_.empty());
  }

  void lose_event(broker_detail::session& /*session*/,
                  std::uint64_t /*subscription*/) noexcept override {
    GPUSHM_REQUIRE(false);  // memory does not run out
  }
  void send(broker_detail::session& target, broker_detail::prepared prepared) noexcept override {
    if (prepared.empty()) {
      return;
    }
    const core::session_id session = target.number;
    GPUSHM_REQUIRE(prepared.size() == 1);
    broker_detail::outgoing& packet = prepared.front();
    GPUSHM_REQUIRE(dropped_.count(session) == 0);
    const std::vector<std::byte> bytes = packet.encode();
    GPUSHM_REQUIRE(bytes.size() <= wire::max_packet_bytes);
    GPUSHM_REQUIRE(packet.descriptors.size() <= wire::max_batch);
    const auto message = wire::decode(bytes);
    GPUSHM_REQUIRE(message);
    if (const auto* created = std::get_if<wire::reserved>(&message->body)) {
      GPUSHM_REQUIRE(packet.descriptors.empty());
      generations_.push_back(created->generation);
    }
    if (const auto* greeted = std::get_if<wire::welcome>(&message->body)) {
      GPUSHM_REQUIRE(greeted->token != wire::session_token{});
      tokens_.push_back(greeted->token);
    }
    const auto* reply_opened = std::get_if<wire::opened>(&message->body);
    const auto* failed = std::get_if<wire::failure>(&message->body);
    if (reply_opened != nullptr) {
      GPUSHM_REQUIRE(packet.descriptors.size() == reply_opened->chunk_bytes.size());
      GPUSHM_REQUIRE(reply_opened->segment.published &&
                     reply_opened->segment.state != segment_state::removed);
      const bool bound = base::is_exporter_bound(reply_opened->segment.backend);
      GPUSHM_REQUIRE(bound == !reply_opened->ticket.empty());
      GPUSHM_REQUIRE(!bound || reply_opened->segment.lifetime == lifetime::leased);
      // Bound memory is opened only if its exporter has just confirmed this open.
      const auto agreed = agreed_.find(reply_opened->segment.generation);
      GPUSHM_REQUIRE(!bound || agreed != agreed_.end());
      if (bound) {
        agreed_.erase(agreed);
      }
    }
    if (const auto* query = std::get_if<wire::confirm>(&message->body)) {
      GPUSHM_REQUIRE(packet.descriptors.empty() && !packet.subscription);
      GPUSHM_REQUIRE(message->id == 0);
      for (std::size_t i = 0; i < query->questions.size(); ++i) {
        const gpushm::generation generation = query->generations[i];
        const auto* segment = segment_of(session, generation);
        GPUSHM_REQUIRE(segment != nullptr && base::is_exporter_bound(segment->backend));
        GPUSHM_REQUIRE(segment->creator_session == session && query->questions[i] != 0);
        // Only an exporter that has resumed gets a question again.
        const auto [at, is_new] = questions_.insert({query->questions[i], {session, generation}});
        GPUSHM_REQUIRE(is_new || at->second.first != session);
        at->second.first = session;
      }
    }
    if (const auto* notice = std::get_if<wire::event>(&message->body); notice && message->id == 0) {
      GPUSHM_REQUIRE(notice->kind == event_kind::removed && notice->generation != 0);
      GPUSHM_REQUIRE(segment_of(session, notice->generation) != nullptr);  // sent to holders only
    }
    if (const auto* more = std::get_if<wire::chunks>(&message->body)) {
      GPUSHM_REQUIRE(packet.descriptors.size() == more->chunk_bytes.size());
    }
    if (message->id >= first_request && (reply_opened != nullptr || failed != nullptr)) {
      const std::uint32_t index = reply_opened != nullptr ? reply_opened->index : failed->index;
      auto& pending = awaiting_reply_[session];
      if (opens_.count({session, message->id}) != 0) {
        const bool whole = failed != nullptr && pending.count({message->id, index}) == 0;
        GPUSHM_REQUIRE(!whole);  // second reply
        pending.erase({message->id, index});
      }
    }
    if (const auto* later = std::get_if<wire::waiting>(&message->body)) {
      GPUSHM_REQUIRE(!packet.on_event_lane);
      GPUSHM_REQUIRE(waits_.insert({session, message->id, later->index}).second);
    }
    if (reply_opened != nullptr || (failed != nullptr && packet.on_event_lane)) {
      // Late replies exactly for opens that were reported as waiting.
      const std::uint32_t index = reply_opened != nullptr ? reply_opened->index : failed->index;
      GPUSHM_REQUIRE(packet.on_event_lane == (waits_.erase({session, message->id, index}) == 1));
    }
    if (std::holds_alternative<wire::cancelled>(message->body)) {
      const std::uint64_t request = cancels_.at({session, message->id});
      auto& pending = awaiting_reply_[session];
      const auto count = std::erase_if(pending, [&](const auto& each) {
        return each.first == request && waits_.erase({session, request, each.second}) == 1;
      });
      GPUSHM_REQUIRE(count != 0);
    }
    events_[session] += packet.on_event_lane ? 1U : 0U;
    if (packet.files) {
      packets_.push_back(std::move(packet));
    }
  }

  void deliver() noexcept override {}
  void record(const broker_detail::session& /*session*/) noexcept override {}
  void record_all(broker_detail::session& /*session*/) noexcept override {}
  void retry_recording() noexcept override { GPUSHM_REQUIRE(false); }
  gpushm::succession::kept_fd open_event_lane(broker_detail::session& session) override {
    GPUSHM_REQUIRE(!session.has_event_lane);
    return {};
  }
  std::uint64_t events_queued(const broker_detail::session& session) const noexcept override {
    const auto at = events_.find(session.number);
    return at == events_.end() ? 0 : at->second;
  }
  void fence_of(broker_detail::session& session,
                fence kind,
                gpushm::succession::kept_fd pidfd,
                gpushm::succession::kept_fd life) override {
    GPUSHM_REQUIRE(dropped_.count(session.number) == 0);
    GPUSHM_REQUIRE(kind != fence::none && pidfd && life);
  }

  void drop(broker_detail::session& session, std::string_view /*why*/) noexcept override {
    GPUSHM_REQUIRE(dropped_.insert(session.number).second);
    to_lose_.push_back(session.number);
    gone_.insert(session.number);
    std::replace(sessions_.begin(), sessions_.end(), session.number, core::session_id{0});
  }

 private:
  static void slot_changed(void* self,
                           std::uint32_t slot,
                           gpushm::generation generation,
                           std::optional<segment_state> state) {
    auto& slots = static_cast<world*>(self)->slots_;
    if (!state) {
      GPUSHM_REQUIRE(slots.erase(slot) == 1);
      return;
    }
    const auto at = slots.emplace(slot, generation).first;
    GPUSHM_REQUIRE(at->second == generation);
  }

  /// The segment if the session holds it; else null.
  const core::segment* segment_of(core::session_id session, gpushm::generation generation) {
    try {
      return &hub_.domain().held(session, generation);
    } catch (const error&) {
      return nullptr;
    }
  }

  /// Any session answers any question; mostly the exporter that received it, and one of the latest.
  void confirm(gpushm_fuzz::script& script, core::session_id session) {
    if (questions_.empty()) {
      return;
    }
    const std::size_t back = 1 + script.pick(std::min<std::size_t>(questions_.size(), 8));
    const auto query = *std::prev(questions_.end(), static_cast<std::ptrdiff_t>(back));
    const core::session_id exporter = query.second.first;
    const bool right = script.pick(8) != 7 && gone_.count(exporter) == 0;
    const core::session_id from = right ? exporter : session;
    const std::uint64_t id = script.pick(16) == 15 ? script.number() : query.first;
    const auto reply = gpushm_fuzz::some_confirmed(script, id);
    for (std::size_t i = 0; i < reply.questions.size(); ++i) {
      if (const auto meant = questions_.find(reply.questions[i]);
          meant != questions_.end() && meant->second.first == from) {
        if (reply.verdicts[i] == wire::verdict::unchanged) {
          agreed_.insert(meant->second.second);
        }
        questions_.erase(meant);
      }
    }
    receive(from, wire::encode({0, reply}), {}, broker_detail::lane_kind::events);
    agreed_.clear();
  }

  void step(gpushm_fuzz::script& script) {
    const std::size_t which = script.pick(sessions_.size());
    const std::size_t choice = script.pick(18);
    if (sessions_[which] == 0) {
      const std::array<core::peer, 4> peers{
          {{11, 1000, true}, {12, 2000, true}, {0, 65534, false}, {13, broker_uid, true}}};
      sessions_[which] = next_session_++;
      try {
        hub_.accept(std::make_shared<broker_detail::session>(sessions_[which]),
                    peers[script.pick(peers.size())]);
      } catch (const error&) {  // a limit is reached
        gone_.insert(sessions_[which]);
        sessions_[which] = 0;
        return;
      }
      if (choice != 0) {  // nearly always a client that sends a hello
        greet(script, sessions_[which]);
      }
      return;
    }
    const core::session_id session = sessions_[which];
    switch (choice) {
      case 0:
        gone_.insert(session);
        sessions_[which] = 0;
        if (script.pick(2) == 0) {
          hub_.hang_up(session);
        } else {
          const bool is_ending = hub_.lose(*hub_.find(session), now_);
          GPUSHM_REQUIRE(is_ending == hub_.domain().is_ending(session));
        }
        work();
        return;
      case 1:
        now_ += std::chrono::milliseconds(script.byte());
        hub_.tick(now_);
        return;
      case 2: {
        const std::size_t size = script.byte() * std::size_t{4};
        send_raw(session, script.bytes(size), some_descriptors(script, script.pick(3), false));
        return;
      }
      case 3:
        if (script.byte() < 16) {
          hub_.receive_truncated(*hub_.find(session));
          lose_dropped();
        }
        return;
      case 16:
      case 17:
        confirm(script, session);
        return;
      default: {
        auto body = gpushm_fuzz::some_body(script, generations_);
        std::size_t count = 0;
        bool of_gpu = false;
        if (const auto* chunks = std::get_if<wire::attach>(&body)) {
          count = chunks->chunk_bytes.size();
          const auto* to = segment_of(session, chunks->generation);
          of_gpu = to != nullptr && to->backend != backend::host;
        }
        if (script.pick(16) == 15) {
          count += script.pick(4);
        }
        auto fds = some_descriptors(script, count, of_gpu);
        if (auto* const cancels = std::get_if<wire::cancel>(&body)) {
          cancels->request = some_open_of(session, cancels->request);
        }
        // Rarely on the wrong lane, which ends the session.
        const bool right = script.pick(64) != 63;
        send_message(session,
                     body,
                     std::move(fds),
                     wire::is_sent_on_event_lane(body) == right
                         ? broker_detail::lane_kind::events
                         : broker_detail::lane_kind::requests);
        return;
      }
    }
  }

  /// The request id of one of the latest opens of `session`; 0 if it has none.
  std::uint64_t some_open_of(core::session_id session, std::uint64_t back) const {
    auto at = opens_.lower_bound({session + 1, 0});
    for (;;) {
      if (at == opens_.begin() || (--at)->first != session) {
        return 0;
      }
      if (back-- % 8 == 0) {
        return at->second;
      }
    }
  }

  void greet(gpushm_fuzz::script& script, core::session_id session) {
    wire::hello hello;
    std::vector<base::unique_fd> fds;
    const std::size_t how = script.pick(4);
    if (how >= 2) {
      hello.fence = fence::proven;
      std::array<int, 2> ends{};
      GPUSHM_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
      ::close(ends[1]);
      fds.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
      fds.emplace_back(ends[0]);
    }
    if (how % 2 == 1 && !tokens_.empty()) {
      hello.resume = tokens_[script.pick(tokens_.size())];
    }
    send_message(session, hello, std::move(fds));
  }

  std::vector<base::unique_fd> some_descriptors(gpushm_fuzz::script& script,
                                                std::size_t count,
                                                bool of_gpu) {
    std::vector<base::unique_fd> result;
    // One decision for all after the first three: a batch is large.
    for (std::size_t i = 0; i < count; ++i) {
      result.push_back(pool().copy(i < 3 ? script.byte() : 0, of_gpu));
    }
    return result;
  }

  void send_message(core::session_id session,
                    const wire::body& body,
                    std::vector<base::unique_fd> fds,
                    broker_detail::lane_kind kind = broker_detail::lane_kind::requests) {
    const std::uint64_t id = next_request_++;
    std::vector<std::byte> packet;
    try {
      packet = wire::encode({id, body});
    } catch (const error&) {
      return;  // a client library does not send it either
    }
    // Opens that the hub refuses as a whole are answered as their first name.
    std::size_t names = std::holds_alternative<wire::open>(body) ? 1 : 0;
    if (const auto* many = std::get_if<wire::open_many>(&body)) {
      names = many->names.size();
    }
    const bool refused =
        !fds.empty() || !hub_.find(session)->greeted ||
        (kind == broker_detail::lane_kind::events) != wire::is_sent_on_event_lane(body);
    if (const auto* cancels = std::get_if<wire::cancel>(&body)) {
      cancels_[{session, id}] = cancels->request;
    }
    if (names != 0 && !refused) {
      opens_.insert({session, id});
      for (std::uint32_t i = 0; i < names; ++i) {
        awaiting_reply_[session].insert({id, i});
      }
    }
    receive(session, packet, std::move(fds), kind);
    work();
  }

  void receive(core::session_id session,
               const std::vector<std::byte>& packet,
               std::vector<base::unique_fd> fds,
               broker_detail::lane_kind lane_kind = broker_detail::lane_kind::requests) {
    if (broker_detail::session* const from = hub_.find(session)) {
      hub_.receive(*from,
                   packet,
                   gpushm::succession::not_kept(base::guard_all(std::move(fds))),
                   now_,
                   0,
                   lane_kind);
    }
    lose_dropped();
  }

  /// As the server does once the packets to them have been sent.
  void lose_dropped() {
    for (const core::session_id number : std::exchange(to_lose_, {})) {
      const bool is_ending = hub_.lose(*hub_.find(number), now_);
      GPUSHM_REQUIRE(is_ending == hub_.domain().is_ending(number));
    }
  }

  void work() {
    for (const core::session_id number : sessions_) {
      broker_detail::session* const of = hub_.find(number);
      while (of != nullptr && (of->rest || of->resumes)) {
        hub_.resume(*of);
      }
    }
    while (hub_.has_work()) {
      hub_.work();
    }
  }

  void send_raw(core::session_id session,
                std::span<const std::byte> bytes,
                std::vector<base::unique_fd> fds) {
    const std::vector<std::byte> packet(bytes.begin(), bytes.end());
    const auto message = wire::decode(packet);
    if (message && std::holds_alternative<wire::confirmed>(message->body)) {
      return;  // `confirm` tracks the confirmations of each exporter
    }
    if (!message || message->id < first_request) {
      receive(session, packet, std::move(fds));
    }
  }

  void remove_remaining() {
    const core::session_id owner = next_session_++;
    hub_.accept(std::make_shared<broker_detail::session>(owner), {13, broker_uid, true});
    send_message(owner, wire::hello{}, {});
    std::vector<std::string> names;
    hub_.domain().list(owner, "", "", [&](const core::segment& segment) {
      GPUSHM_REQUIRE(segment.published && segment.lifetime == lifetime::persistent);
      GPUSHM_REQUIRE(segment.leases.empty() && segment.creator_session == 0);
      names.push_back(segment.name);
      return true;
    });
    for (const std::string& name : names) {
      send_message(owner, wire::remove{name}, {});
    }
    hub_.hang_up(owner);
  }

  std::array<core::session_id, 4> sessions_{};
  core::session_id next_session_ = 1;
  std::uint64_t next_request_ = first_request;
  core::time_point now_{};
  std::vector<gpushm::generation> generations_;
  std::vector<wire::session_token> tokens_;
  std::vector<outgoing> packets_;  // keep files open until the packets are destroyed
  std::set<core::session_id> dropped_;
  std::vector<core::session_id> to_lose_;  ///< sessions dropped since the last packet
  std::set<core::session_id> gone_;
  std::set<std::pair<core::session_id, std::uint64_t>> opens_;
  std::map<core::session_id, std::set<std::pair<std::uint64_t, std::uint32_t>>> awaiting_reply_;
  /// Requested confirmations: the exporter's session, and the generation.
  std::map<std::uint64_t, std::pair<core::session_id, gpushm::generation>> questions_;
  /// Names of opens that were reported as waiting.
  std::set<std::tuple<core::session_id, std::uint64_t, std::uint32_t>> waits_;
  std::map<std::pair<core::session_id, std::uint64_t>, std::uint64_t> cancels_;
  std::map<core::session_id, std::uint64_t> events_;  ///< packets on the event lane
  std::multiset<gpushm::generation> agreed_;          ///< confirmed by the current packet
  std::map<std::uint32_t, gpushm::generation> slots_;
  hub hub_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(pool());
  // Counted for each input: libFuzzer opens pipes to its symbolizer.
  const std::size_t before = open_descriptors();
  {
    world all;
    gpushm_fuzz::script script({data, std::min<std::size_t>(size, 8192)});
    all.run(script);
    all.finish();
  }
  GPUSHM_REQUIRE(open_descriptors() == before);
  return 0;
}
