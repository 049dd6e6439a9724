// SPDX-License-Identifier: Apache-2.0
// Exporter-bound memory, through packets.
#include <gtest/gtest.h>

#include "tests/broker/hub_world.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace testing_world;
using std::chrono::milliseconds;

const core::peer alice{101, 1000, true};
const core::peer bob{201, 2000, true};

/// An unnamed tmpfs file, like the fake driver's exported pools and allocations.
base::unique_fd unnamed_tmpfs_file() {
  base::unique_fd fd(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_TRUE(fd) << "/dev/shm is not a tmpfs";
  EXPECT_EQ(::ftruncate(fd.get(), 4096), 0);
  return fd;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

wire::reserve legacy_handle(std::string name) {
  wire::reserve wanted{std::move(name), 1000, 4096, {}, 0, backend::cuda_ipc, lifetime::leased};
  wanted.device = {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  wanted.offset_bytes = 3000;
  wanted.ticket = bytes_of("not read by the broker");
  return wanted;
}

wire::reserve pool(std::string name) {
  wire::reserve wanted = legacy_handle(std::move(name));
  wanted.backend = backend::cuda_pool;
  wanted.chunk_count = 1;
  return wanted;
}

class hub_share : public hub_test {
 protected:
  explicit hub_share(const core::limits& bounds = {}) : hub_test(bounds) {}

  gpushm::generation share(core::session_id session, const std::string& name) {
    const auto created =
        expect<wire::reserved>(round_trip(session, legacy_handle(name))).generation;
    expect<wire::done>(round_trip(session, wire::publish{created, {}}));
    return created;
  }
  /// Sends an open; the broker reports immediately that it waits.
  std::uint64_t send_and_expect_waiting(core::session_id session, wire::body body) {
    const std::uint64_t request = send_request(session, std::move(body));
    const auto packets = take(session);
    EXPECT_EQ(packets.size(), 1U);
    EXPECT_TRUE(!packets.empty() && !packets[0].on_event_lane &&
                std::holds_alternative<wire::waiting>(packets[0].message.body));
    return request;
  }
  struct one_question {
    std::uint64_t id = 0;
    gpushm::generation generation = 0;
  };
  /// Expects a single packet to that session, with questions.
  wire::confirm questions(core::session_id exporter) {
    auto packets = take(exporter);
    EXPECT_EQ(packets.size(), 1U);
    if (packets.size() != 1 || !std::holds_alternative<wire::confirm>(packets[0].message.body)) {
      ADD_FAILURE() << "no question";
      return {{0}, {0}};
    }
    EXPECT_EQ(packets[0].message.id, 0U);
    EXPECT_TRUE(packets[0].on_event_lane && packets[0].descriptors.empty());
    EXPECT_FALSE(packets[0].subscription) << "a resync must never replace a question";
    return std::get<wire::confirm>(packets[0].message.body);
  }
  one_question question(core::session_id exporter) {
    const auto list = questions(exporter);
    EXPECT_EQ(list.questions.size(), 1U);
    return {list.questions.at(0), list.generations.at(0)};
  }
  /// Sends an exporter's reply; the broker sends nothing back.
  void reply_to_question(core::session_id session, const wire::confirmed& replies) {
    receive(session, wire::encode({0, replies}), {}, lane_kind::events);
  }
  void reply_to_question(core::session_id session, std::uint64_t id, wire::verdict verdict) {
    reply_to_question(session, {{id}, {verdict}});
  }
  std::string failure_of(const std::vector<arrived>& replies, std::uint64_t request) {
    EXPECT_EQ(replies.size(), 1U);
    const auto* why =
        replies.empty() ? nullptr : std::get_if<wire::failure>(&replies[0].message.body);
    if (why == nullptr) {
      ADD_FAILURE() << "no failure";
      return {};
    }
    EXPECT_EQ(replies[0].message.id, request);
    EXPECT_TRUE(replies[0].on_event_lane);
    return std::string(to_string(why->code)) + ": " + why->cause + " (" + why->next_step + ")";
  }
  /// Expects the event for holders of a lease.
  void expect_lost(core::session_id holder, gpushm::generation generation, const char* name) {
    const auto packets = take(holder);
    ASSERT_EQ(packets.size(), 1U);
    EXPECT_EQ(packets[0].message.id, 0U);
    EXPECT_EQ(packets[0].subscription, std::optional<std::uint64_t>(0))
        << "a resync may replace it";
    EXPECT_TRUE(packets[0].descriptors.empty());
    const auto* entry = std::get_if<wire::event>(&packets[0].message.body);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->kind, event_kind::removed);
    EXPECT_EQ(entry->generation, generation);
    EXPECT_EQ(entry->name, name);
    EXPECT_EQ(entry->peer_pid, 0);
  }
};

TEST_F(hub_share, opened_after_confirmation_with_ticket_and_offset) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  const auto created = share(exporter, "kv");
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 2; ++i) {
    const auto request = send_and_expect_waiting(importer, wire::open{"kv", 0, 0});
    EXPECT_TRUE(take(importer).empty());
    const auto asked = question(exporter);
    EXPECT_EQ(asked.generation, created);
    EXPECT_NE(asked.id, 0U);
    ids.push_back(asked.id);
    reply_to_question(exporter, asked.id, wire::verdict::unchanged);
    EXPECT_TRUE(take(exporter).empty()) << "no reply to an exporter";
    const auto replies = take(importer);
    ASSERT_EQ(replies.size(), 1U);
    EXPECT_EQ(replies[0].message.id, request);
    EXPECT_TRUE(replies[0].on_event_lane);
    const auto* opened = std::get_if<wire::opened>(&replies[0].message.body);
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->segment.generation, created);
    EXPECT_EQ(opened->segment.size_bytes, 1000U);
    EXPECT_EQ(opened->segment.allocated_bytes, 4096U);
    EXPECT_EQ(opened->segment.offset_bytes, 3000U);
    EXPECT_EQ(opened->segment.backend, backend::cuda_ipc);
    EXPECT_EQ(opened->segment.chunk_count, 0U);
    EXPECT_EQ(opened->segment.device.uuid, "GPU-0");
    EXPECT_EQ(opened->segment.creator_pid, 101);
    EXPECT_EQ(opened->ticket, bytes_of("not read by the broker"));
    EXPECT_TRUE(opened->chunk_bytes.empty());
    EXPECT_TRUE(replies[0].descriptors.empty());
  }
  EXPECT_NE(ids[0], ids[1]);
  const auto listed = expect<wire::listing>(round_trip(importer, wire::stat{"kv"}));
  ASSERT_EQ(listed.segments.size(), 1U);
  EXPECT_EQ(listed.segments[0].offset_bytes, 3000U);
  EXPECT_EQ(listed.segments[0].leases, 2U);
  EXPECT_EQ(failure(round_trip(importer, wire::fetch_chunks{created, 0})),
            "invalid_argument: the segment has only 0 chunks (request chunks that exist)");
  expect_nothing_left();
}

TEST_F(hub_share, open_many_asks_once_per_name) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  const auto a = share(exporter, "a");
  const auto b = share(exporter, "b");
  make(exporter, "host");
  const auto request = send_request(importer, wire::open_many{{"b", "host", "a", "c"}, 0, 0});
  auto replies = take(importer);
  ASSERT_EQ(replies.size(), 4U) << "opens without a question do not wait";
  EXPECT_EQ(std::get<wire::waiting>(replies[0].message.body).index, 0U);
  EXPECT_EQ(std::get<wire::waiting>(replies[1].message.body).index, 2U);
  EXPECT_EQ(std::get<wire::opened>(replies[2].message.body).index, 1U);
  EXPECT_EQ(std::get<wire::failure>(replies[3].message.body).index, 3U);
  EXPECT_FALSE(replies[2].on_event_lane || replies[3].on_event_lane);
  const auto asked = questions(exporter);
  ASSERT_EQ(asked.generations, (std::vector<gpushm::generation>{b, a})) << "in one packet";
  reply_to_question(exporter, asked.questions[1], wire::verdict::unchanged);
  replies = take(importer);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].message.id, request);
  EXPECT_EQ(std::get<wire::opened>(replies[0].message.body).index, 2U);
  reply_to_question(exporter, asked.questions[0], wire::verdict::not_shared);
  replies = take(importer);
  EXPECT_EQ(failure_of(replies, request),
            "gone_or_replaced: its exporter no longer shares this memory (unshare before freeing, "
            "and share the new memory)");
  EXPECT_EQ(std::get<wire::failure>(replies[0].message.body).index, 0U);
  expect_lost(exporter, b, "b");
  replies.clear();
  expect_nothing_left();
}

TEST_F(hub_share, changed_memory_loses_its_name_and_holders_get_events) {
  const auto exporter = greet(alice);
  const auto holder = greet(bob);
  const auto importer = greet(bob);
  const auto bystander = greet(bob);
  const auto created = share(exporter, "kv");
  send_and_expect_waiting(holder, wire::open{"kv", 0, 0});
  reply_to_question(exporter, question(exporter).id, wire::verdict::unchanged);
  take(holder);
  expect<wire::subscribed>(round_trip(bystander, wire::subscribe{""}));
  const auto subscription = request_;
  const auto request = send_and_expect_waiting(importer, wire::open{"kv", 0, 0});
  reply_to_question(exporter, question(exporter).id, wire::verdict::changed);
  EXPECT_EQ(failure_of(take(importer), request),
            "gone_or_replaced: its exporter has freed or replaced the memory without unshare "
            "(unshare before freeing, and share the new memory)");
  expect_lost(exporter, created, "kv");
  expect_lost(holder, created, "kv");
  const auto received = take(bystander);
  ASSERT_EQ(received.size(), 1U) << "without a lease: only the subscription's event";
  EXPECT_EQ(received[0].message.id, subscription);
  ASSERT_EQ(slots_.size(), 1U);
  EXPECT_EQ(slots_.begin()->second, std::pair(created, segment_state::removed));
  expect_nothing_left();
}

TEST_F(hub_share, holders_of_any_segment_get_its_removal) {
  const auto creator = greet(alice);
  const auto holder = greet(bob);
  const auto created = make(creator, "kv", lifetime::persistent);
  expect<wire::opened>(round_trip(holder, wire::open{"kv", 0, 0}));
  send_request(creator, wire::remove{"kv", created});
  auto packets = take(creator);
  ASSERT_EQ(packets.size(), 2U);  // the reply, then the event for its lease
  EXPECT_EQ(packets[0].message.id, request_);
  EXPECT_TRUE(std::holds_alternative<wire::done>(packets[0].message.body));
  EXPECT_EQ(packets[1].message.id, 0U);
  expect_lost(holder, created, "kv");
  packets.clear();
  expect_nothing_left();
}

TEST_F(hub_share, death_of_the_exporter_frees_its_names) {
  const auto exporter = greet(alice);
  const auto holder = greet(bob);
  const auto importer = greet(bob);
  const auto created = share(exporter, "kv");
  send_and_expect_waiting(holder, wire::open{"kv", 0, 0});
  reply_to_question(exporter, question(exporter).id, wire::verdict::unchanged);
  take(holder);
  const auto request = send_and_expect_waiting(importer, wire::open{"kv", 0, 0});
  static_cast<void>(question(exporter));
  hub_.hang_up(exporter);
  const std::string died =
      "peer_died: the process that shared this memory in domain default has died (start it again; "
      "an open with a timeout waits for the name)";
  EXPECT_EQ(failure_of(take(importer), request), died);
  expect_lost(holder, created, "kv");
  ASSERT_EQ(slots_.size(), 1U);
  EXPECT_EQ(slots_.begin()->second, std::pair(created, segment_state::exporter_gone));
  EXPECT_EQ(failure(round_trip(importer, wire::open{"kv", 0, 0})), died);
  EXPECT_EQ(failure(round_trip(importer, wire::stat{"kv"})),
            "peer_died: the process that shared this memory in domain default has died (start it "
            "again)");
  const auto again = share(importer, "kv");
  EXPECT_NE(again, created);
  // The holder keeps its lease.
  EXPECT_EQ(hub_.domain().held(holder, created).name, "kv");
  expect_nothing_left();
}

TEST_F(hub_share, goodbye_of_the_exporter_removes_its_segments) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  share(exporter, "kv");
  const auto request = send_and_expect_waiting(importer, wire::open{"kv", 0, 0});
  static_cast<void>(question(exporter));
  send_request(exporter, wire::bye{});
  hub_.hang_up(exporter);
  EXPECT_EQ(failure_of(take(importer), request),
            "no_such_segment: no such segment in domain default (`gpushm ls` lists segments; an "
            "open with a timeout waits for the name)");
  EXPECT_TRUE(slots_.empty());
  expect_nothing_left();
}

TEST_F(hub_share, question_without_a_reply_times_out) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  now_ += milliseconds(10'000);
  const auto created = share(exporter, "kv");
  const auto request = send_and_expect_waiting(importer, wire::open{"kv", 0, 60'000});
  const auto asked = question(exporter);
  EXPECT_EQ(hub_.next_deadline(), now_ + milliseconds(2'000));
  hub_.tick(now_ + milliseconds(1'999));
  EXPECT_TRUE(take(importer).empty());
  hub_.tick(now_ + milliseconds(2'000));
  EXPECT_EQ(failure_of(take(importer), request),
            "timed_out: the process that shares this memory does not answer (check whether it is "
            "stopped or overloaded)");
  reply_to_question(exporter, asked.id, wire::verdict::changed);
  EXPECT_TRUE(take(importer).empty());
  EXPECT_EQ(slots_.begin()->second, std::pair(created, segment_state::live));
  expect_nothing_left();
}

TEST_F(hub_share, only_the_exporter_can_confirm) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  const auto created = share(exporter, "kv");
  send_and_expect_waiting(importer, wire::open{"kv", 0, 0});
  const auto asked = question(exporter);
  for (const auto word :
       {wire::verdict::unchanged, wire::verdict::changed, wire::verdict::not_shared}) {
    reply_to_question(importer, asked.id, word);
    reply_to_question(exporter, asked.id + 1, word);
    reply_to_question(exporter, 0, word);
  }
  EXPECT_TRUE(take(importer).empty());
  EXPECT_TRUE(take(exporter).empty());
  EXPECT_TRUE(out_.dropped.empty()) << "a late reply is not a violation";
  EXPECT_EQ(slots_.begin()->second, std::pair(created, segment_state::live));
  reply_to_question(exporter, asked.id, wire::verdict::unchanged);
  EXPECT_EQ(take(importer).size(), 1U);
  expect_nothing_left();
}

TEST_F(hub_share, offered_only_to_opens_that_wait_for_the_exporter) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  const auto created = share(exporter, "kv");
  const auto word = expect<wire::waiting>(round_trip(importer, wire::open{"kv", 1000, 0}));
  ASSERT_TRUE(word.segment);
  EXPECT_EQ(word.segment->generation, created);
  EXPECT_EQ(word.segment->size_bytes, 1000U);
  EXPECT_EQ(word.segment->offset_bytes, 3000U);
  EXPECT_EQ(word.ticket, bytes_of("not read by the broker"));
  EXPECT_TRUE(word.chunk_bytes.empty());
  EXPECT_EQ(expect<wire::listing>(round_trip(importer, wire::stat{"kv"})).segments.at(0).leases, 1U)
      << "an offer is not a lease";
  EXPECT_FALSE(expect<wire::waiting>(round_trip(importer, wire::open{"kv", 999, 0})).segment)
      << "the open will be refused";
  EXPECT_FALSE(expect<wire::waiting>(round_trip(importer, wire::open{"later", 0, 1'000})).segment);
  const auto answers = round_trip(importer, wire::open_many{{"later", "kv"}, 0, 1'000});
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_FALSE(std::get<wire::waiting>(answers[0].message.body).segment);
  EXPECT_EQ(std::get<wire::waiting>(answers[1].message.body).segment->generation, created);
  take(exporter);
  const auto later =
      expect<wire::reserved>(round_trip(exporter, legacy_handle("later"))).generation;
  send_request(exporter, wire::publish{later, {}});
  EXPECT_EQ(take(exporter).size(), 2U) << "done and the questions";
  EXPECT_TRUE(take(importer).empty()) << "already reported as waiting";
  expect_nothing_left();
}

TEST_F(hub_share, unsolicited_replies_in_a_list_are_ignored) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  const auto a = share(exporter, "a");
  const auto b = share(exporter, "b");
  const auto request = send_request(importer, wire::open_many{{"a", "b", "a"}, 0, 0});
  EXPECT_EQ(take(importer).size(), 3U);
  const auto asked = questions(exporter);
  ASSERT_EQ(asked.generations, (std::vector<gpushm::generation>{a, b, a}));
  const auto [first, second, third] =
      std::tuple(asked.questions[0], asked.questions[1], asked.questions[2]);
  reply_to_question(exporter,
                    {{third + 1, second, second, first, 0},
                     {wire::verdict::changed,
                      wire::verdict::unchanged,
                      wire::verdict::changed,
                      wire::verdict::changed,
                      wire::verdict::unchanged}});
  auto replies = take(importer);
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(std::get<wire::opened>(replies[0].message.body).segment.generation, b);
  EXPECT_EQ(std::get<wire::failure>(replies[1].message.body).code, errc::gone_or_replaced);
  reply_to_question(exporter,
                    {{third, third}, {wire::verdict::unchanged, wire::verdict::unchanged}});
  replies = take(importer);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].message.id, request);
  EXPECT_EQ(std::get<wire::failure>(replies[0].message.body).code, errc::no_such_segment)
      << "its name was removed when the first had changed";
  EXPECT_TRUE(out_.dropped.empty());
  expect_nothing_left();
}

TEST_F(hub_share, questions_are_batched) {
  constexpr std::size_t count = 1'000;
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  share(exporter, "kv");
  send_request(importer, wire::open_many{std::vector<std::string>(count, "kv"), 0, 0});
  EXPECT_EQ(take(importer).size(), count);
  std::size_t packets = 0;
  std::size_t replied = 0;
  while (replied < count) {
    const auto some = take(exporter);
    ASSERT_FALSE(some.empty());
    packets += some.size();
    for (const arrived& each : some) {
      const auto& list = std::get<wire::confirm>(each.message.body);
      reply_to_question(
          exporter,
          {list.questions,
           std::vector<wire::verdict>(list.questions.size(), wire::verdict::unchanged)});
      const auto replies = take(importer);
      EXPECT_EQ(replies.size(), list.questions.size());
      replied += replies.size();
    }
  }
  EXPECT_EQ(replied, count);
  EXPECT_LE(packets, 40U);
  expect_nothing_left();
}

TEST_F(hub_share, confirmation_needs_hello_and_no_descriptors) {
  const auto exporter = greet(alice);
  EXPECT_EQ(failure(round_trip(exporter,
                               wire::confirmed{{1}, {wire::verdict::unchanged}},
                               descriptors(unnamed_tmpfs_file()))),
            "wrong_descriptor_count: 1 descriptors received with a message that announces 0 (send "
            "exactly the announced descriptors)");
  EXPECT_TRUE(out_.dropped.empty());
  const auto silent = accept(bob);
  EXPECT_EQ(failure(round_trip(silent, wire::confirmed{{1}, {wire::verdict::unchanged}})),
            "protocol_error: request before Hello (use a client of protocol version 2)");
  EXPECT_TRUE(out_.is_dropped(silent));
  EXPECT_EQ(failure(round_trip(exporter, wire::confirm{{1}, {1}})),
            "protocol_error: a client sent a message that only brokers send (use a client of "
            "protocol version 2)");
  EXPECT_TRUE(out_.is_dropped(exporter));
  expect_nothing_left();
}

TEST_F(hub_share, legacy_handle_accepts_no_chunk) {
  const auto exporter = greet(alice);
  const auto created = expect<wire::reserved>(round_trip(exporter, legacy_handle("kv"))).generation;
  for (auto make_fd : {+[] { return unnamed_tmpfs_file(); }, +[] { return memfd(4096); }}) {
    EXPECT_EQ(
        failure(round_trip(exporter, wire::attach{created, 0, {4096}}, descriptors(make_fd()))),
        "wrong_descriptor_count: chunks 0 to 1 do not follow the 0 of 0 attached chunks "
        "(attach the announced chunks in order)");
  }
  EXPECT_EQ(failure(round_trip(exporter, wire::attach{created, 0, {}})),
            "wrong_descriptor_count: chunks 0 to 0 do not follow the 0 of 0 attached chunks "
            "(attach the announced chunks in order)");
  expect<wire::done>(round_trip(exporter, wire::publish{created, {}}));
  expect_nothing_left();
}

TEST_F(hub_share, pool_accepts_only_driver_files) {
  const auto exporter = greet(alice);
  const auto created = expect<wire::reserved>(round_trip(exporter, pool("kv"))).generation;
  const std::string text =
      "wrong_descriptor_kind: a GPU chunk is not a descriptor of /dev/nvidiactl (attach the "
      "descriptor that cuMemExportToShareableHandle returned)";
  EXPECT_EQ(
      failure(round_trip(exporter, wire::attach{created, 0, {4096}}, descriptors(memfd(4096)))),
      text);
  EXPECT_EQ(failure(round_trip(
                exporter, wire::attach{created, 0, {4096}}, descriptors(unnamed_tmpfs_file()))),
            text);
  EXPECT_EQ(
      failure(round_trip(exporter, wire::publish{created, {}})),
      "wrong_descriptor_count: 0 of 1 announced chunks are attached (attach all chunks before "
      "publishing)");
  expect_nothing_left();
}

TEST_F(hub_share, invalid_reservation_is_refused) {
  const auto exporter = greet(alice);
  auto wanted = legacy_handle("kv");
  wanted.ticket.clear();
  EXPECT_EQ(failure(round_trip(exporter, wanted)),
            "invalid_argument: the ticket is missing, too long, or not for this kind of memory "
            "(report this as a bug)");
  wanted = legacy_handle("kv");
  wanted.lifetime = lifetime::persistent;
  EXPECT_EQ(
      failure(round_trip(exporter, wanted)),
      "invalid_argument: what is bound to its creator cannot be persistent (share it as leased, or "
      "create a persistent segment and copy)");
  wanted = legacy_handle("kv");
  wanted.offset_bytes = 3097;
  EXPECT_EQ(failure(round_trip(exporter, wanted)),
            "invalid_argument: the segment extends past its allocation (report this as a bug)");
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  expect_nothing_left();
}

TEST_F(hub_share, removed_by_generation) {
  const auto exporter = greet(alice);
  const auto old = share(exporter, "kv");
  expect<wire::done>([&] {
    send_request(exporter, wire::remove{"kv", old});
    auto packets = take(exporter);
    EXPECT_EQ(packets.size(), 2U);
    packets.pop_back();  // the event for its lease
    return packets;
  }());
  const auto created = share(exporter, "kv");
  EXPECT_EQ(failure(round_trip(exporter, wire::remove{"kv", old})),
            "gone_or_replaced: another segment has this name now: generation " +
                std::to_string(created) +
                " (the generation that was meant has been removed; `gpushm ls` shows the one "
                "that has the name)");
  EXPECT_EQ(expect<wire::listing>(round_trip(exporter, wire::stat{"kv"})).segments.at(0).generation,
            created);
  expect_nothing_left();
}

/// With a broker that accepts the fake driver's files.
class hub_share_fake : public hub_share {
 protected:
  hub_share_fake()
      : fake_(
            {{"default", broker_uid, {1, 2, 3}, true, state_table_.get()}, {}},
            out_,
            [](void*, std::uint32_t, gpushm::generation, std::optional<segment_state>) {},
            nullptr) {}

  std::vector<arrived> ask_fake(core::session_id session,
                                wire::body body,
                                std::vector<base::unique_fd> fds = {}) {
    const auto packet = wire::encode({++request_, std::move(body)});
    fake_.receive(
        *fake_.find(session), packet, succession::not_kept(base::guard_all(std::move(fds))), now_);
    return take(session);
  }
  core::session_id greet_fake() {
    const auto number = next_session_++;
    fake_.accept(std::make_shared<session>(number), alice);
    expect<wire::welcome>(ask_fake(number, wire::hello{}));
    return number;
  }
  hub fake_;
};

TEST_F(hub_share_fake, pool_is_sent_with_its_descriptor) {
  const std::size_t before = open_descriptors();
  const auto exporter = greet_fake();
  const auto importer = greet_fake();
  const auto created = expect<wire::reserved>(ask_fake(exporter, pool("kv"))).generation;
  const std::string text =
      "wrong_descriptor_kind: a GPU chunk is not a descriptor of /dev/nvidiactl (attach the "
      "descriptor that cuMemExportToShareableHandle returned)";
  EXPECT_EQ(failure(ask_fake(exporter, wire::attach{created, 0, {4096}}, descriptors(memfd(4096)))),
            text)
      << "never a memfd";
  EXPECT_EQ(
      failure(
          ask_fake(exporter, wire::attach{created, 0, {2048}}, descriptors(unnamed_tmpfs_file()))),
      "size_mismatch: the chunks' sizes do not add up to the reserved bytes (attach chunks that "
      "add up to the reserved bytes)");
  expect<wire::done>(
      ask_fake(exporter, wire::attach{created, 0, {4096}}, descriptors(unnamed_tmpfs_file())));
  expect<wire::done>(ask_fake(exporter, wire::publish{created, {}}));
  EXPECT_EQ(fake_.domain().descriptors(), 2U * 4U + 1U);

  auto offers = ask_fake(importer, wire::open{"kv", 0, 0});
  const auto offer = expect<wire::waiting>(offers);
  EXPECT_EQ(offer.chunk_bytes, std::vector<std::uint64_t>{4096});
  EXPECT_EQ(offers.at(0).descriptors.size(), 1U) << "the pool";
  offers.clear();
  const auto request = request_;
  const auto asked = question(exporter);
  fake_.receive(*fake_.find(exporter),
                wire::encode({0, wire::confirmed{{asked.id}, {wire::verdict::unchanged}}}),
                {},
                now_,
                0,
                lane_kind::events);
  auto replies = take(importer);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].message.id, request);
  const auto opened = std::get<wire::opened>(replies[0].message.body);
  EXPECT_EQ(opened.chunk_bytes, std::vector<std::uint64_t>{4096});
  EXPECT_EQ(opened.segment.backend, backend::cuda_pool);
  EXPECT_EQ(opened.segment.size_bytes, 1000U);
  EXPECT_EQ(opened.segment.offset_bytes, 3000U);
  EXPECT_EQ(opened.ticket, bytes_of("not read by the broker"));
  EXPECT_EQ(replies[0].descriptors.size(), 1U) << "the pool";

  fake_.hang_up(exporter);
  take(importer);
  EXPECT_EQ(fake_.domain().segment_count(), 1U) << "the importer has it mapped";
  fake_.hang_up(importer);
  replies.clear();
  EXPECT_EQ(fake_.domain().segment_count(), 0U);
  EXPECT_EQ(fake_.domain().descriptors(), 0U);
  EXPECT_EQ(fake_.domain().allocated_bytes(), 0U);
  EXPECT_EQ(open_descriptors(), before);
}

class hub_share_bounded : public hub_share {
 protected:
  hub_share_bounded() : hub_share({.max_pending_opens = 2}) {}
};

TEST_F(hub_share_bounded, waiting_opens_are_limited_per_connection) {
  const auto exporter = greet(alice);
  const auto importer = greet(bob);
  share(exporter, "kv");
  send_request(importer, wire::open_many{{"kv", "kv", "kv"}, 0, 0});
  const auto request = request_;
  EXPECT_EQ(questions(exporter).questions.size(), 2U);
  const auto replies = take(importer);
  ASSERT_EQ(replies.size(), 3U) << "two wait";
  const auto why = std::get<wire::failure>(replies[2].message.body);
  EXPECT_EQ(replies[2].message.id, request);
  EXPECT_FALSE(replies[2].on_event_lane);
  EXPECT_EQ(std::string(to_string(why.code)) + ": " + why.cause + " (" + why.next_step + ")",
            "too_many_requests: 2 opens of this connection wait for exporters, the limit (open "
            "fewer segments at once)");
  EXPECT_EQ(why.index, 2U);
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::broker_detail
