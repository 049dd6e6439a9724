// SPDX-License-Identifier: Apache-2.0
// Every request with a failure of each of its allocations: it succeeds or is refused without
// effect, and the peer gets one reply. Whatever ends a session needs no memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/broker/hub_world.hpp"
#include "tests/core/counting_new.hpp"

namespace gpushm::broker_detail {
namespace {

using gpushm_testing::fail_allocation;
using gpushm_testing::fail_allocations_from;
using testing_world::descriptors;
using testing_world::memfd;
using testing_world::open_descriptors;

constexpr std::uint32_t broker_uid = 42;
constexpr std::size_t max_sessions = 8;

/// Stores packets without allocating memory.
class non_allocating_outbox final : public outbox {
 public:
  void send(session& target, prepared packet) noexcept override {
    prepared& queue = sent.at(target.number);
    queue.splice(queue.end(), packet);
  }
  void lose_event(session& session, std::uint64_t /*subscription*/) noexcept override {
    ++lost_events.at(session.number);
  }
  void drop(session& session, std::string_view /*why*/) noexcept override {
    dropped.at(session.number) = true;
  }
  void fence_of(session& /*session*/,
                fence /*kind*/,
                succession::kept_fd /*pidfd*/,
                succession::kept_fd /*life*/) override {}
  succession::kept_fd open_event_lane(session& /*session*/) override { return {}; }
  void deliver() noexcept override {}
  void record(const session& /*session*/) noexcept override {}
  void record_all(session& /*session*/) noexcept override {}
  void retry_recording() noexcept override {}
  std::uint64_t events_queued(const session& /*session*/) const noexcept override { return 0; }

  std::array<prepared, max_sessions> sent;
  std::array<std::size_t, max_sessions> lost_events{};
  std::array<bool, max_sessions> dropped{};
};

/// State that a refused request must not change.
struct state {
  std::size_t segments = 0;
  std::size_t sessions = 0;
  std::size_t ending = 0;
  std::size_t leases = 0;
  std::size_t waiting = 0;
  std::size_t published = 0;
  core::budget::amounts used{};
  std::map<std::uint32_t, std::pair<gpushm::generation, segment_state>> slots;
  friend bool operator==(const state&, const state&) = default;
  friend std::ostream& operator<<(std::ostream& out, const state& info) {
    out << info.segments << " segments, " << info.sessions << " sessions, " << info.ending
        << " ending, " << info.leases << " leases, " << info.waiting << " waiting, "
        << info.published << " published; used:";
    for (const std::uint64_t amount : info.used) {
      out << ' ' << amount;
    }
    return out;
  }
};

constexpr core::session_id creator = 1;
constexpr core::session_id other = 2;
constexpr core::session_id watcher = 3;
constexpr core::session_id fresh = 4;  ///< has sent no Hello

/// A broker with a segment "kv" of `creator`, another one that is attached and not published,
/// exporter-bound memory, two waiting opens, and a subscriber of everything.
class world {
 public:
  world()
      : hub_(
            {.rules = {.domain = "default",
                       .owner_uid = broker_uid,
                       .epoch = {1, 2, 3},
                       .accept_fake_chunks = true},
             .limits = {}},
            out_,
            [](void* context,
               std::uint32_t slot,
               gpushm::generation generation,
               std::optional<segment_state> now) {
              auto& slots = static_cast<world*>(context)->slots_;
              // Memory of the test, not of the broker.
              const gpushm_testing::no_failures keep;
              if (now) {
                slots[slot] = {generation, *now};
              } else {
                slots.erase(slot);
              }
            },
            this) {
    for (const core::session_id number : {creator, other, watcher, fresh}) {
      hub_.accept(std::make_shared<session>(number),
                  {static_cast<std::int32_t>(100 + number), 1000, true});
      if (number != fresh) {
        send_request(number, wire::hello{});
        tokens.at(number) = std::get<wire::welcome>(last(number).body).token;
      }
    }
    send_request(watcher, wire::subscribe{""});
    kv = reserve("kv", 1);
    send_request(creator, wire::attach{kv, 0, {4096}}, descriptors(memfd(4096)));
    send_request(creator, wire::publish{kv, {}});
    later = reserve("later", 2);
    send_request(creator, wire::attach{later, 0, {4096}}, descriptors(memfd(4096)));
    wire::reserve bound{
        "bound", 4096, 4096, {device_kind::gpu, "GPU-1", "0000:18:00.0", 0}, 0, backend::cuda_ipc};
    bound.ticket.resize(64);
    send_request(creator, bound);
    shared = std::get<wire::reserved>(last(creator).body).generation;
    send_request(creator, wire::publish{shared, {}});
    send_request(other, wire::open{"later", 0, 60'000});
    send_request(watcher, wire::open{"later", 0, 60'000});
    forget();
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world() {
    for (core::session_id session = 1; session < max_sessions; ++session) {
      hub_.hang_up(session);
    }
    while (hub_.has_work()) {
      hub_.work();
    }
    out_.sent = {};
    EXPECT_EQ(hub_.domain().segment_count(), 0U);
    EXPECT_EQ(hub_.domain().lease_count(), 0U);
    EXPECT_EQ(hub_.domain().descriptors(), 0U);
    EXPECT_EQ(hub_.domain().waiting_count(), 0U);
    EXPECT_EQ(hub_.domain().budget().used(core::resource::memory_bytes), 0U);
    EXPECT_TRUE(slots_.empty());
  }

  void send_request(core::session_id session,
                    wire::body body,
                    std::vector<base::unique_fd> fds = {}) {
    const auto lane = wire::is_sent_on_event_lane(body) ? lane_kind::events : lane_kind::requests;
    const auto packet = wire::encode({++request, std::move(body)});
    receive(session, packet, succession::not_kept(base::guard_all(std::move(fds))), lane);
  }
  void receive(core::session_id number,
               const std::vector<std::byte>& packet,
               std::vector<succession::kept_fd> fds,
               lane_kind lane_kind = lane_kind::requests) {
    session& from = *hub_.find(number);
    hub_.receive(from, packet, std::move(fds), core::time_point{}, 0, lane_kind);
    while (from.rest || from.resumes) {
      hub_.resume(from);
    }
  }
  [[nodiscard]] bool lose(core::session_id number) {
    return hub_.lose(*hub_.find(number), core::time_point{});
  }
  gpushm::generation reserve(const std::string& name, std::uint32_t chunks) {
    send_request(
        creator,
        wire::reserve{name, chunks * 4096ULL, chunks * 4096ULL, {}, chunks, backend::host, {}});
    return std::get<wire::reserved>(last(creator).body).generation;
  }
  [[nodiscard]] wire::message last(core::session_id session) const {
    return *wire::decode(out_.sent.at(session).back().encode());
  }
  std::uint64_t question = 0;  ///< to the creator
  void forget() {
    out_.sent = {};
    out_.lost_events = {};
  }
  [[nodiscard]] state now() const {
    state result;
    const core::domain& domain = hub_.domain();
    result.segments = domain.segment_count();
    result.sessions = domain.session_count();
    result.ending = domain.ending_count();
    result.leases = domain.lease_count();
    result.waiting = domain.waiting_count();
    domain.list(watcher, "", "", [&](const core::segment&) {
      ++result.published;
      return true;
    });
    for (std::size_t i = 0; i < core::resource_count; ++i) {
      result.used.at(i) = domain.budget().used(static_cast<core::resource>(i));
    }
    result.slots = slots_;
    return result;
  }

  std::map<std::uint32_t, std::pair<gpushm::generation, segment_state>> slots_;
  non_allocating_outbox out_;
  hub hub_;
  std::uint64_t request = 0;
  gpushm::generation kv = 0;
  gpushm::generation later = 0;
  gpushm::generation shared = 0;
  std::array<wire::session_token, max_sessions> tokens{};
};

struct request {
  const char* name;
  core::session_id from;
  std::function<wire::body(world&)> body;
  std::size_t files = 0;
  std::function<void(world&)> before = [](world&) {};
  core::session_id replied = 0;  ///< the session that gets the reply; 0: `from`
  std::function<std::uint64_t(world&)> id = [](world& world) { return world.request; };
  std::size_t replies = 1;
  friend std::ostream& operator<<(std::ostream& out, const request& info) {
    return out << info.name;
  }
};

/// The code of each reply of a session; errc{} is a success. A late reply replaces the `waiting`
/// before it.
std::vector<errc> replies_in(const prepared& sent) {
  std::vector<errc> result;
  for (const outgoing& each : sent) {
    const auto message = wire::decode(each.encode());
    if (each.is_reply && each.on_event_lane && !result.empty()) {
      result.pop_back();
    }
    if (each.is_reply) {
      const auto* why = std::get_if<wire::failure>(&message->body);
      result.push_back(why == nullptr ? errc{} : why->code);
    }
  }
  return result;
}

class every_request : public testing::TestWithParam<request> {
 protected:
  struct outcome {
    state before;
    state after;
    std::vector<errc> replies;
    std::size_t refused_opens = 0;  ///< of others
    std::size_t events = 0;         ///< received by the subscriber, or reported to it as lost
    bool dropped = false;
    bool failed = false;       ///< an allocation has failed
    bool asked_again = false;  ///< the exporter's replies were lost
  };

  /// Runs the request while the `nth` allocation fails; 0: none.
  static outcome run(std::size_t nth, bool permanently) {
    const request& request = GetParam();
    const core::session_id replied = request.replied != 0 ? request.replied : request.from;
    outcome result;
    world at;
    request.before(at);
    const std::uint64_t id = request.id(at);
    at.forget();
    const wire::body body = request.body(at);
    const auto lane = wire::is_sent_on_event_lane(body) ? lane_kind::events : lane_kind::requests;
    const auto packet = wire::encode({id, body});
    std::vector<base::unique_fd> carried;
    for (std::size_t i = 0; i < request.files; ++i) {
      carried.push_back(memfd(4096));
    }
    auto guarded = succession::not_kept(base::guard_all(std::move(carried)));
    result.before = at.now();
    (permanently ? fail_allocations_from : fail_allocation)(nth);
    at.receive(request.from, packet, std::move(guarded), lane);
    result.failed = gpushm_testing::an_allocation_failed();
    fail_allocation(0);
    result.after = at.now();
    for (const outgoing& each : at.out_.sent.at(creator)) {
      result.asked_again = result.asked_again ||
                           std::holds_alternative<wire::confirm>(wire::decode(each.encode())->body);
    }
    result.asked_again = result.asked_again && std::holds_alternative<wire::confirmed>(body);
    result.replies = replies_in(at.out_.sent.at(replied));
    result.dropped = at.out_.dropped.at(replied);
    for (const core::session_id session : {creator, other, watcher}) {
      if (session != replied) {
        const auto codes = replies_in(at.out_.sent.at(session));
        result.refused_opens +=
            static_cast<std::size_t>(std::count(codes.begin(), codes.end(), errc::out_of_memory));
        result.dropped = result.dropped || at.out_.dropped.at(session);
      }
    }
    for (const outgoing& each : at.out_.sent.at(watcher)) {
      result.events += each.subscription ? 1U : 0U;
    }
    result.events += at.out_.lost_events.at(watcher);
    return result;
  }
};

TEST_P(every_request, succeeds_or_is_refused_without_effect) {
  const std::size_t wanted_replies = GetParam().replies;
  const outcome good = run(0, false);
  EXPECT_EQ(good.replies, std::vector<errc>(wanted_replies)) << "the request is valid";
  std::size_t refused = 0;
  for (const bool permanently : {false, true}) {
    for (std::size_t nth = 1;; ++nth) {
      SCOPED_TRACE("allocation " + std::to_string(nth) + (permanently ? " and all after it" : ""));
      ASSERT_LT(nth, 2'000U);
      const std::size_t files = open_descriptors();
      const outcome got = run(nth, permanently);
      EXPECT_EQ(open_descriptors(), files);
      if (!got.failed) {
        EXPECT_EQ(got.after, good.after);
        break;
      }
      if (permanently && got.dropped) {
        continue;  // no memory even for a refusal
      }
      EXPECT_FALSE(got.dropped);
      if (got.asked_again) {
        EXPECT_TRUE(got.replies.empty());
        EXPECT_EQ(got.after, got.before);
        continue;
      }
      if (std::count(got.replies.begin(), got.replies.end(), errc::out_of_memory) == 0) {
        EXPECT_EQ(got.replies, good.replies);
        EXPECT_EQ(got.after.segments, good.after.segments);
        EXPECT_EQ(got.after.published, good.after.published);
        EXPECT_LE(got.after.leases, good.after.leases);
        EXPECT_GE(got.after.leases + got.refused_opens, good.after.leases);
        EXPECT_GE(got.events + got.refused_opens, good.events);
        if (got.refused_opens == 0) {
          EXPECT_EQ(got.after, good.after);
        }
        continue;
      }
      ++refused;
      if (wanted_replies == 1) {
        EXPECT_EQ(got.replies.size(), 1U);
        EXPECT_EQ(got.after.leases, got.before.leases);
        EXPECT_EQ(got.after.slots, got.before.slots);
        if (GetParam().replied == 0) {  // else a waiting open was answered
          EXPECT_EQ(got.after, got.before);
        }
      } else {
        EXPECT_TRUE(got.replies.size() == wanted_replies || got.replies.size() == 1);
      }
    }
  }
  EXPECT_TRUE(refused != 0 || wanted_replies == 0);
}

/// Its packet counts as handled before this, so that a throw would leave the session without turns.
TEST(request_without_descriptors, gets_a_reply_or_its_session_is_dropped) {
  const auto packet = wire::encode({77, wire::attach{1, 0, {4096}}});
  const std::vector<std::byte> damaged(packet.begin(), packet.begin() + 8);
  for (const auto& each : {packet, damaged}) {
    for (const bool permanently : {false, true}) {
      bool failed = true;
      for (std::size_t nth = 1; failed; ++nth) {
        SCOPED_TRACE("allocation " + std::to_string(nth));
        ASSERT_LT(nth, 1'000U);
        world at;
        at.forget();
        session& from = *at.hub_.find(creator);
        (permanently ? fail_allocations_from : fail_allocation)(nth);
        EXPECT_NO_THROW(at.hub_.receive_without_descriptors(from, each));
        failed = gpushm_testing::an_allocation_failed();
        fail_allocation(0);
        const auto replies = replies_in(at.out_.sent.at(creator));
        EXPECT_TRUE(at.out_.dropped.at(creator) || replies.size() == 1U);
        EXPECT_TRUE(failed || replies.size() == 1U);
      }
    }
  }
}

struct ending {
  const char* name;
  std::function<void(world&)> work;
  std::function<void(world&)> before = [](world&) {};
  friend std::ostream& operator<<(std::ostream& out, const ending& info) {
    return out << info.name;
  }
};

class every_end : public testing::TestWithParam<ending> {};

TEST_P(every_end, needs_no_memory) {
  std::optional<state> good;
  std::vector<std::size_t> replies;
  for (const bool without_memory : {false, true}) {
    world at;
    at.send_request(other, wire::open{"kv", 0, 0});
    at.send_request(watcher, wire::open{"bound", 0, 0});
    GetParam().before(at);
    at.forget();
    fail_allocations_from(without_memory ? 1 : 0);
    GetParam().work(at);
    fail_allocation(0);
    if (!without_memory) {
      good = at.now();
      for (const prepared& sent : at.out_.sent) {
        replies.push_back(replies_in(sent).size());
      }
      continue;
    }
    EXPECT_EQ(at.now(), *good);
    for (std::size_t session = 1; session < max_sessions; ++session) {
      // There is no memory for the replies either: sessions that wait for one are dropped.
      EXPECT_EQ(at.out_.dropped.at(session), replies.at(session) != 0) << "session " << session;
    }
  }
}

/// Which take several turns as long as there is memory for the rest.
TEST(events_to_many_subscribers, are_resyncs_without_memory) {
  constexpr std::uint32_t subscriptions = 1'500;
  core::limits bounds;
  bounds.max_subscriptions = subscriptions;
  non_allocating_outbox out;
  hub hub(
      {.rules = {.domain = "default",
                 .owner_uid = broker_uid,
                 .epoch = {1, 2, 3},
                 .accept_fake_chunks = true},
       .limits = bounds},
      out,
      [](void*, std::uint32_t, gpushm::generation, std::optional<segment_state>) {},
      nullptr);
  std::uint64_t request = 0;
  const auto ask = [&](core::session_id number, wire::body body) {
    hub.receive(*hub.find(number),
                wire::encode({++request, std::move(body)}),
                {},
                core::time_point{},
                0,
                lane_kind::requests);
  };
  for (core::session_id number = 1; number < max_sessions; ++number) {
    hub.accept(std::make_shared<session>(number), {101, 1000, true});
    ask(number, wire::hello{});
    if (number == watcher) {
      continue;
    }
    wire::reserve wanted{
        std::to_string(number), 1, 1, {device_kind::gpu, "GPU-1", "", 0}, 0, backend::cuda_ipc};
    wanted.ticket.resize(1);
    ask(number, wanted);
    ask(number, wire::publish{number - (number > watcher ? 1U : 0U), {}});
  }
  ASSERT_EQ(hub.domain().segment_count(), max_sessions - 2);
  for (std::uint32_t i = 0; i < subscriptions; ++i) {
    ask(watcher, wire::subscribe{""});
  }
  out.sent = {};
  fail_allocations_from(1);
  for (core::session_id number = 1; number < max_sessions; ++number) {
    if (number != watcher) {
      hub.hang_up(number);
    }
  }
  while (hub.has_work()) {
    hub.work();
  }
  fail_allocation(0);
  EXPECT_EQ(hub.domain().segment_count(), 0U);
  EXPECT_TRUE(out.sent.at(watcher).empty());
  const std::size_t lost = out.lost_events.at(watcher);
  EXPECT_GE(lost, (max_sessions - 2) * subscriptions);
  EXPECT_EQ(lost % subscriptions, 0U);
}

const auto lose_creator = [](world& world) { EXPECT_TRUE(world.lose(creator)); };
const auto lose_and_resume = [](world& world) {
  lose_creator(world);
  wire::hello again;
  again.resume = world.tokens.at(creator);
  world.send_request(fresh, again);
  EXPECT_TRUE(std::get<wire::welcome>(world.last(fresh).body).resumed);
};
const auto open_kv = [](world& world) { world.send_request(other, wire::open{"kv", 0, 0}); };

INSTANTIATE_TEST_SUITE_P(
    out_of_memory,
    every_end,
    testing::Values(ending{.name = "goodbye_or_death",
                           .work = [](world& world) { world.hub_.hang_up(creator); }},
                    ending{.name = "loss",
                           .work = [](world& world) { static_cast<void>(world.lose(other)); }},
                    ending{.name = "fence",
                           .work = [](world& world) { world.hub_.hang_up(creator); },
                           .before = lose_creator},
                    ending{.name = "time",
                           .work =
                               [](world& world) {
                                 world.hub_.tick(core::time_point{} + std::chrono::hours(1));
                               }}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    out_of_memory,
    every_request,
    testing::Values(
        request{.name = "hello", .from = fresh, .body = [](world&) { return wire::hello{}; }},
        request{.name = "hello_again",
                .from = fresh,
                .body =
                    [](world& world) {
                      wire::hello again;
                      again.resume = world.tokens.at(creator);
                      return again;
                    },
                .before = lose_creator},
        request{
            .name = "reserve",
            .from = other,
            .body =
                [](world&) {
                  return wire::reserve{
                      std::string(100, 'n'), 4096, 4096, {}, 1, backend::host, lifetime::leased};
                }},
        request{.name = "attach",
                .from = creator,
                .body =
                    [](world& world) {
                      return wire::attach{world.later, 1, {4096}};
                    },
                .files = 1},
        request{.name = "publish",
                .from = creator,
                .body =
                    [](world& world) {
                      return wire::publish{world.later, std::vector<std::byte>(100)};
                    },
                .before =
                    [](world& world) {
                      world.send_request(
                          creator, wire::attach{world.later, 1, {4096}}, descriptors(memfd(4096)));
                    }},
        request{.name = "open",
                .from = other,
                .body =
                    [](world&) {
                      return wire::open{"kv", 4096, 0};
                    }},
        request{.name = "open_again",
                .from = other,
                .body =
                    [](world&) {
                      return wire::open{"kv", 0, 0};
                    },
                .before = open_kv},
        request{.name = "open_that_waits",
                .from = other,
                .body =
                    [](world&) {
                      return wire::open{std::string(100, 'w'), 0, 60'000};
                    }},
        request{.name = "cancel",
                .from = other,
                .body = [](world& world) { return wire::cancel{world.request}; },
                .before =
                    [](world& world) {
                      world.send_request(other, wire::open{std::string(100, 'w'), 0, 60'000});
                    },
                .id = [](world& world) { return world.request + 1; }},
        request{.name = "open_of_shared",
                .from = other,
                .body =
                    [](world&) {
                      return wire::open{"bound", 0, 0};
                    }},
        request{.name = "confirmed",
                .from = creator,
                .body =
                    [](world& world) {
                      return wire::confirmed{{world.question}, {wire::verdict::unchanged}};
                    },
                .before =
                    [](world& world) {
                      world.send_request(other, wire::open{"bound", 0, 0});
                      world.question =
                          std::get<wire::confirm>(world.last(creator).body).questions.at(0);
                    },
                .replied = other,
                .id = [](world&) { return std::uint64_t{0}; }},
        request{.name = "confirmed_as_changed",
                .from = creator,
                .body =
                    [](world& world) {
                      return wire::confirmed{{world.question}, {wire::verdict::changed}};
                    },
                .before =
                    [](world& world) {
                      world.send_request(other, wire::open{"bound", 0, 0});
                      world.question =
                          std::get<wire::confirm>(world.last(creator).body).questions.at(0);
                    },
                .id = [](world&) { return std::uint64_t{0}; },
                .replies = 0},
        request{.name = "open_many",
                .from = other,
                .body =
                    [](world&) {
                      return wire::open_many{{"kv", "kv", "kv"}, 0, 0};
                    },
                .replies = 3},
        request{.name = "fetch_chunks",
                .from = other,
                .body =
                    [](world& world) {
                      return wire::fetch_chunks{world.kv, 0};
                    },
                .before = open_kv},
        request{.name = "release",
                .from = other,
                .body =
                    [](world& world) {
                      return wire::release{world.kv, 1};
                    },
                .before = open_kv,
                .replies = 0},
        request{.name = "remove",
                .from = creator,
                .body =
                    [](world& world) {
                      return wire::remove{"kv", world.kv};
                    },
                .before = open_kv},
        request{.name = "list", .from = other, .body = [](world&) { return wire::list{}; }},
        request{.name = "stat", .from = other, .body = [](world&) { return wire::stat{"kv"}; }},
        request{.name = "subscribe",
                .from = other,
                .body = [](world&) { return wire::subscribe{std::string(100, 'p')}; }},
        request{.name = "unsubscribe",
                .from = other,
                .body = [](world& world) { return wire::unsubscribe{world.request - 1}; },
                .before = [](world& world) { world.send_request(other, wire::subscribe{"k"}); },
                .id = [](world& world) { return ++world.request; }},
        request{.name = "unfence",
                .from = other,
                .body = [](world&) { return wire::unfence{"kv"}; },
                .before = lose_creator},
        request{.name = "keep",
                .from = fresh,
                .body =
                    [](world& world) {
                      return wire::keep{{world.kv}, {1}, false};
                    },
                .before = lose_and_resume}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace gpushm::broker_detail
