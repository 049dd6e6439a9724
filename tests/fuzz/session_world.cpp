// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/session_world.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "protocol/wire/codec.hpp"
#include "succession/records/records.hpp"
#include "tests/fuzz/require.hpp"

namespace gpushm_fuzz {

using namespace gpushm;

namespace {

constexpr std::uint32_t broker_uid = 42;
constexpr std::uint64_t max_descriptors = 400;
/// First id of the requests sent by this program; raw packets with such an id are not sent.
constexpr std::uint64_t first_request = std::uint64_t{1} << 40U;

}  // namespace

session_world::session_world()
    : next_request_(first_request),
      hub_({{"default", broker_uid, {1, 2, 3}, true, -1},
            {.max_segments = 8,
             .quota_bytes = 200'000,
             .quota_bytes_per_principal = 100'000,
             .max_descriptors = max_descriptors,
             .max_pending_opens = 4,
             .max_subscriptions = 3,
             .confirm_timeout = std::chrono::milliseconds(300),
             .max_dead_names = 2},
            nullptr,
            nullptr},
           *this,
           &session_world::slot_changed,
           this) {}

void session_world::run(script& script) {
  while (!script.done()) {
    step(script);
    check_state();
  }
  finish();
}

void session_world::finish() {
  check_records();
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
      gone_.insert(session);
      hub_.hang_up(session);
    }
  }
  for (const auto session : gone_) {  // as if their fences had signalled
    hub_.hang_up(session);
  }
  GPUSHM_REQUIRE(hub_.domain().ending_count() == 0);
  work();
  check_state();
  GPUSHM_REQUIRE(hub_.domain().session_count() == 0);
  GPUSHM_REQUIRE(hub_.domain().descriptors() <= max_descriptors);
  remove_remaining();
  packets_.clear();
  check_state();
  GPUSHM_REQUIRE(hub_.domain().segment_count() == 0);
  GPUSHM_REQUIRE(hub_.domain().session_count() == 0);
  GPUSHM_REQUIRE(hub_.domain().lease_count() == 0);
  GPUSHM_REQUIRE(hub_.domain().allocated_bytes() == 0);
  GPUSHM_REQUIRE(hub_.domain().descriptors() == 0);
  for (std::size_t i = 0; i < core::resource_count; ++i) {
    GPUSHM_REQUIRE(hub_.domain().budget().used(static_cast<core::resource>(i)) == 0);
  }
  for (const auto& [name, value] : hub_.domain().save().records) {
    GPUSHM_REQUIRE(name.kind == core::record_kind::numbers ||
                   name.kind == core::record_kind::dead_name);
  }
  GPUSHM_REQUIRE(slots_.empty());
}

void session_world::check_records() const {
  const core::saved_state saved = domain().save();
  core::saved_state read;
  records::encoder encoder;
  for (const auto& [name, value] : saved.records) {
    read.records[name] = records::decode(name.kind, encoder.encode(value));
  }
  GPUSHM_REQUIRE(read == saved);
  const core::domain successor("default", broker_uid, domain().bounds(), nullptr, read);
  GPUSHM_REQUIRE(successor.save() == saved);
  for (std::size_t i = 0; i < core::resource_count; ++i) {
    const auto resource = static_cast<core::resource>(i);
    const auto before = domain().budget().used(resource);
    const auto after = successor.budget().used(resource);
    // Packets that were sent are charged too, until they are read.
    GPUSHM_REQUIRE(has_unread_packets() ? after <= before : after == before);
  }
}

void session_world::slot_changed(void* self,
                                 std::uint32_t slot,
                                 gpushm::generation generation,
                                 std::optional<segment_state> state) {
  auto& slots = static_cast<session_world*>(self)->slots_;
  if (!state) {
    GPUSHM_REQUIRE(slots.erase(slot) == 1);
    return;
  }
  const auto at = slots.emplace(slot, generation).first;
  GPUSHM_REQUIRE(at->second == generation);
}

const core::segment* session_world::segment_of(core::session_id session,
                                               gpushm::generation generation) const {
  try {
    return &hub_.domain().held(session, generation);
  } catch (const error&) {
    return nullptr;
  }
}

/// Any session answers any question; mostly the exporter that received it, and one of the latest.
void session_world::confirm(script& script, core::session_id session) {
  if (questions_.empty()) {
    return;
  }
  const std::size_t back = 1 + script.pick(std::min<std::size_t>(questions_.size(), 8));
  const auto query = *std::prev(questions_.end(), static_cast<std::ptrdiff_t>(back));
  const core::session_id exporter = query.second.first;
  const bool right = script.pick(8) != 7 && gone_.count(exporter) == 0;
  const core::session_id from = right ? exporter : session;
  const std::uint64_t id = script.pick(16) == 15 ? script.number() : query.first;
  const auto reply = some_confirmed(script, id);
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

void session_world::step(script& script) {
  const std::size_t which = script.pick(sessions_.size());
  const std::size_t choice = script.pick(18);
  if (sessions_[which] == 0) {
    connect(script, sessions_[which], choice != 0);  // nearly always a client that sends a hello
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
    default:
      act(script, session);
      return;
  }
}

void session_world::connect(script& script, core::session_id& session, bool is_greeting) {
  const std::array<core::peer, 4> peers{
      {{11, 1000, true}, {12, 2000, true}, {0, 65534, false}, {13, broker_uid, true}}};
  session = next_session_++;
  try {
    hub_.accept(std::make_shared<broker_detail::session>(session),
                peers[script.pick(peers.size())]);
  } catch (const error&) {  // a limit is reached
    gone_.insert(session);
    session = 0;
    return;
  }
  if (is_greeting) {
    greet(script, session);
  }
}

void session_world::act(script& script, core::session_id session) {
  auto body = some_body(script, generations_);
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
               wire::is_sent_on_event_lane(body) == right ? broker_detail::lane_kind::events
                                                          : broker_detail::lane_kind::requests);
}

std::uint64_t session_world::some_open_of(core::session_id session, std::uint64_t back) const {
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

wire::hello session_world::some_hello(script& /*script*/) {
  return {};
}

void session_world::greet(script& script, core::session_id session) {
  wire::hello hello = some_hello(script);
  descriptors fds;
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

session_world::descriptors session_world::some_descriptors(script& script,
                                                           std::size_t count,
                                                           bool of_gpu) {
  descriptors result;
  // One decision for all after the first three: a batch is large.
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(descriptor_pool::instance().copy(i < 3 ? script.byte() : 0, of_gpu));
  }
  return result;
}

void session_world::send_message(core::session_id session,
                                 const wire::body& body,
                                 descriptors fds,
                                 broker_detail::lane_kind kind) {
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
  check_request(session, {id, body}, fds);
  receive(session, packet, std::move(fds), kind);
  work();
}

void session_world::receive(core::session_id session,
                            const std::vector<std::byte>& packet,
                            descriptors fds,
                            broker_detail::lane_kind lane_kind) {
  if (broker_detail::session* const from = hub_.find(session)) {
    hub_.receive(
        *from, packet, succession::not_kept(base::guard_all(std::move(fds))), now_, 0, lane_kind);
  }
  lose_dropped();
  check_state();
}

/// As the server does once the packets to them have been sent.
void session_world::lose_dropped() {
  for (const core::session_id number : std::exchange(to_lose_, {})) {
    const bool is_ending = hub_.lose(*hub_.find(number), now_);
    GPUSHM_REQUIRE(is_ending == hub_.domain().is_ending(number));
  }
}

void session_world::work() {
  for (const core::session_id number : sessions_) {
    broker_detail::session* const session = hub_.find(number);
    while (session != nullptr && (session->rest || session->resumes)) {
      hub_.resume(*session);
    }
  }
  while (hub_.has_work()) {
    hub_.work();
  }
}

void session_world::send_raw(core::session_id session,
                             std::span<const std::byte> bytes,
                             descriptors fds) {
  const std::vector<std::byte> packet(bytes.begin(), bytes.end());
  const auto message = wire::decode(packet);
  if (message && std::holds_alternative<wire::confirmed>(message->body)) {
    return;  // `confirm` tracks the confirmations of each exporter
  }
  if (message && message->id >= first_request) {
    return;
  }
  if (message) {
    check_request(session, *message, fds);
  }
  receive(session, packet, std::move(fds));
}

void session_world::remove_remaining() {
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
  gone_.insert(owner);
  hub_.hang_up(owner);
}

}  // namespace gpushm_fuzz
