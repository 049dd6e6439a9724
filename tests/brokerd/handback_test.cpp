// SPDX-License-Identifier: Apache-2.0
// The broker and both processes of its keeper are killed at once, and with them everything that the
// node knew about its segments: the next broker gets back what processes still have, and reports
// the rest as lost (docs/adr/0031). GPUSHM_LOSSES sets how often the members of the last test
// lose their broker, GPUSHM_HANDBACK_DEVICE where their memory is (host).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::errc;
using gpushm_testing::body_of;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::failure_of;
using gpushm_testing::raw_session;
namespace wire = gpushm::wire;

constexpr uid_t other_uid = 12'345;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string variable(const char* name, const std::string& otherwise) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it
  return text == nullptr ? otherwise : text;
}

/// On a GPU: memory for each open of which the broker asks its exporter.
std::string shared_kind() {
  return variable("GPUSHM_HANDBACK_DEVICE", "host") == "host" ? "memfd" : "malloc";
}

class member {
 public:
  explicit member(const std::string& socket, uid_t uid = static_cast<uid_t>(-1))
      : process_(child::start({.argv = {gpushm_testing::own_program("holding_member"),
                                        socket,
                                        variable("GPUSHM_HANDBACK_DEVICE", "host")},
                               .uid = uid,
                               .gid = static_cast<gid_t>(uid)})) {
    EXPECT_NE(process_.wait_for_line("ready", 20s), "") << process_.output().all_output();
  }

  /// The reply, without "ok".
  std::string does(const std::string& command) {
    process_.write(command + "\n");
    const std::string reply = process_.wait_for_line("ok.*|failed.*", 20s);
    return reply.starts_with("ok ") ? reply.substr(3) : reply;
  }
  child& process() { return process_; }

 private:
  child process_;
};

class lost_broker : public testing::Test {
 protected:
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  [[nodiscard]] raw_session greeted() const {
    static_cast<void>(connect());  // waits for the broker
    return raw_session::greeted(socket_);
  }
  void start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"--domain", "default"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (!variable("GPUSHM_FAKE_GPU_ROOT", "").empty()) {
      arguments.emplace_back("--accept-fake-chunks");
    }
    broker_.emplace(run_dir_, arguments);
    if (::geteuid() == 0) {  // as if the domain were mounted into the container of another uid
      static_cast<void>(connect());
      ASSERT_EQ(::chmod((run_dir_ + "/d").c_str(), 0711), 0);
    }
  }
  /// Kills the broker and its keeper: nothing continues.
  void kill_all() { broker_.reset(); }
  void lose(const std::vector<std::string>& more = {}) {
    kill_all();
    start(more);
  }
  [[nodiscard]] std::string log() { return broker_->keeper().output().all_output(); }
  /// Whether the broker has this segment, within `timeout`.
  [[nodiscard]] bool has(const std::string& name,
                         const std::string& generation,
                         std::chrono::milliseconds timeout = 10s) const {
    auto looks = connect();
    return eventually(
        [&] {
          const auto processes = looks.list(name);
          return processes.size() == 1 &&
                 std::to_string(processes.front().generation) == generation &&
                 processes.front().published;
        },
        timeout);
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_;
};

TEST_F(lost_broker, gets_persistent_memory_back_from_a_process_that_has_it_open) {
  start();
  std::string generation;
  {
    member creator(socket_);
    generation = creator.does("create w persistent 7");
    ASSERT_EQ(creator.does("publish w"), "ok");
  }
  member reader(socket_, ::geteuid() == 0 ? other_uid : ::geteuid());
  ASSERT_EQ(reader.does("open w"), generation);
  const std::string files = reader.does("files");
  for (int loss = 0; loss != 5; ++loss) {
    lose();  // the reader requests nothing
    ASSERT_TRUE(has("w", generation)) << log();
    // The broker has it before its reply has reached the reader.
    EXPECT_TRUE(eventually([&] { return reader.does("state w") == "live"; }, 10s));
    EXPECT_TRUE(eventually([&] { return reader.does("files") == files; }, 10s));
    member another(socket_);
    EXPECT_EQ(another.does("open w"), generation);
    EXPECT_EQ(another.does("holds w 7"), "same");
    const auto info = connect().stat("w");
    EXPECT_EQ(info.creator_uid, ::geteuid()) << "who may remove it has changed";
    EXPECT_EQ(info.leases, 2U);
  }
  EXPECT_EQ(reader.does("open w"), generation) << "again, as it was";
  connect().remove("w");
  EXPECT_TRUE(eventually([&] { return reader.does("state w") == "removed"; }, 10s));
}

// The counts are what an operator compares after both programs were lost.
TEST_F(lost_broker, has_what_was_handed_back_in_its_log) {
  start();
  member creator(socket_);
  creator.does("create one persistent 7");
  ASSERT_EQ(creator.does("publish one"), "ok");
  creator.does("create two persistent 8");
  ASSERT_EQ(creator.does("publish two"), "ok");
  lose();
  EXPECT_NE(broker_->keeper().wait_for_line(
                "domain default: the last broker and its keeper have ended with 2 segments, which "
                "clients can hand back for 300 s",
                60s,
                gpushm_testing::stream::err),
            "");
  EXPECT_NE(broker_->keeper().wait_for_line(
                "domain default: clients have handed back 2 segments, none is missing",
                60s,
                gpushm_testing::stream::err),
            "");
}

TEST_F(lost_broker, gets_leased_memory_back_from_its_creator_and_readers_lease_it_again) {
  start();
  member creator(socket_);
  const std::string generation = creator.does("create w leased 8");
  ASSERT_EQ(creator.does("publish w"), "ok");
  const std::string shared = creator.does("share s " + shared_kind());
  member reader(socket_);
  ASSERT_EQ(reader.does("open w"), generation);
  ASSERT_EQ(reader.does("open s"), shared);
  creator.process().kill(SIGSTOP);  // the readers are there first
  lose();
  EXPECT_FALSE(has("w", generation, 300ms)) << "handed back by a reader";
  creator.process().kill(SIGCONT);
  ASSERT_TRUE(has("w", generation)) << log();
  ASSERT_TRUE(has("s", shared)) << log();
  EXPECT_TRUE(eventually([&] { return reader.does("state w") == "live"; }, 10s));
  EXPECT_TRUE(eventually([&] { return reader.does("state s") == "live"; }, 10s));
  EXPECT_TRUE(eventually([&] { return creator.does("state w") == "live"; }, 10s));
  EXPECT_EQ(connect().stat("w").leases, 2U);
  // Its end is noticed as always.
  EXPECT_EQ(creator.does("close w"), "ok");
  EXPECT_TRUE(eventually([&] { return connect().stat("w").leases == 1; }, 10s));
  EXPECT_EQ(reader.does("close w"), "ok");
  EXPECT_TRUE(eventually([&] { return connect().list("w").empty(); }, 10s));
}

TEST_F(lost_broker, gets_back_what_is_not_published_yet) {
  start();
  member creator(socket_);
  const std::string generation = creator.does("create w persistent 9");
  lose();
  EXPECT_TRUE(eventually([&] { return creator.does("state w") == "live"; }, 10s)) << log();
  ASSERT_EQ(creator.does("publish w"), "ok");
  EXPECT_TRUE(has("w", generation));
  member reader(socket_);
  EXPECT_EQ(reader.does("open w"), generation);
  EXPECT_EQ(reader.does("holds w 9"), "same");
}

TEST_F(lost_broker, gets_back_what_outlives_its_client_object) {
  start();
  member creator(socket_);
  const std::string generation = creator.does("create w persistent 1");
  ASSERT_EQ(creator.does("publish w"), "ok");
  ASSERT_EQ(creator.does("end"), "ok");
  lose();
  EXPECT_TRUE(has("w", generation)) << log();
}

TEST_F(lost_broker, successors_take_back_too) {
  start();
  member creator(socket_);
  const std::string generation = creator.does("create w persistent 1");
  ASSERT_EQ(creator.does("publish w"), "ok");
  creator.process().kill(SIGSTOP);
  lose();
  for (int kills = 0; kills != 3; ++kills) {
    ASSERT_TRUE(broker_->kill());
  }
  EXPECT_TRUE(connect().list().empty());
  creator.process().kill(SIGCONT);
  EXPECT_TRUE(has("w", generation)) << log();
  ASSERT_TRUE(broker_->kill());
  EXPECT_TRUE(has("w", generation)) << log();
}

TEST_F(lost_broker, a_successor_of_a_broker_that_has_recorded_nothing_gives_new_generations_out) {
  start();
  member creator(socket_);
  const std::string old = creator.does("create w persistent 1");
  ASSERT_EQ(creator.does("publish w"), "ok");
  creator.process().kill(SIGSTOP);
  lose();
  static_cast<void>(connect());  // its domain is served
  ASSERT_TRUE(broker_->kill());
  member another(socket_);
  const std::string generation = another.does("create n persistent 1");
  EXPECT_GT(std::stoull(generation), std::stoull(old)) << "given out again";
  ASSERT_EQ(another.does("publish n"), "ok");
  creator.process().kill(SIGCONT);
  ASSERT_TRUE(has("w", old)) << log();
  const auto epoch = connect().broker().epoch;
  ASSERT_TRUE(broker_->kill());
  EXPECT_TRUE(has("w", old)) << log();
  EXPECT_TRUE(has("n", generation)) << log();
  EXPECT_EQ(connect().broker().epoch, epoch) << log();
}

/// What a process does with timelines and channels, by lines on its standard input.
class timeline_agent {
 public:
  explicit timeline_agent(const std::string& socket) { does("connect " + socket); }
  void does(const std::string& order) {
    process_.write(order + "\n");
    const std::string reply = process_.wait_for_line("ok.*|error.*", 20s);
    EXPECT_EQ(reply.substr(0, 2), "ok") << order << ": " << reply;
  }
  void kill() { process_.kill(SIGKILL); }

 private:
  child process_ = child::start({.argv = {gpushm_testing::own_program("timeline_agent")}});
};

/// Timelines and channels whose other side dies with broker and keeper: no process is left that
/// knows of that death, but those that wait must end.
TEST_F(lost_broker, ends_waits_for_processes_that_have_died_with_it) {
  start();
  auto client = connect();
  auto producer = gpushm::channel_producer::create(
      client, "here", {.slot_bytes = 64, .slots = 2, .device = "host"});
  timeline_agent dies(socket_);
  for (const char* const order :
       {"create t", "signal t 3", "produce there 4 64 host", "consume here 0 host"}) {
    dies.does(order);
  }
  const auto seen = gpushm::timeline::open(client, "t");
  auto consumer = gpushm::channel_consumer::open(
      client, "there", {.device = "host", .resume = std::chrono::minutes(2)});
  dies.does("fill_items 1");
  consumer.next(20s).value().release();
  for (int i = 0; i != 2; ++i) {
    producer.acquire(20s).value().publish();
  }
  const auto code_of = [](const std::function<void()>& wait) {
    return std::async(std::launch::async, [wait] {
      try {
        wait();
        return errc();
      } catch (const gpushm::error& why) {
        return why.code();
      }
    });
  };
  auto value = code_of([&] { static_cast<void>(seen.wait(4, 120s)); });
  bool has_room = false;
  auto room = code_of([&] { has_room = producer.acquire(120s).has_value(); });
  std::uint64_t number = 0;
  auto item = code_of([&] {
    if (const auto next = consumer.next(120s)) {
      number = next->number();
    }
  });
  kill_all();
  dies.kill();
  start();
  ASSERT_EQ(value.wait_for(60s), std::future_status::ready) << log();
  EXPECT_EQ(value.get(), errc::peer_died);
  EXPECT_EQ(seen.value(), 3U);
  EXPECT_EQ(room.get(), errc());
  EXPECT_TRUE(has_room);
  // The channel goes on with another producer.
  timeline_agent follows(socket_);
  follows.does("produce there 4 64 host");
  follows.does("fill_items 1");
  EXPECT_EQ(item.get(), errc());
  EXPECT_EQ(number, 2U);
}

/// It begins before anything shows that there was another one: its consumers join it as new ones.
TEST_F(lost_broker, channels_go_on_with_a_producer_that_comes_early) {
  using gpushm::consumer_mode;
  start();
  auto client = connect();
  timeline_agent dies(socket_);
  dies.does("produce c 4 64 host");
  std::vector<gpushm::channel_consumer> consumers;
  for (const consumer_mode mode :
       {consumer_mode::block, consumer_mode::latest, consumer_mode::share}) {
    gpushm::consumer_options wanted;
    wanted.mode = mode;
    wanted.device = "host";
    wanted.resume = gpushm::forever;
    consumers.push_back(gpushm::channel_consumer::open(client, "c", wanted));
  }
  dies.does("fill_items 1");
  for (auto& each : consumers) {
    each.next(20s).value().release();
  }
  kill_all();
  dies.kill();
  start();
  timeline_agent follows(socket_);
  follows.does("produce c 4 64 host");
  std::vector<std::future<std::uint64_t>> numbers;
  numbers.reserve(consumers.size());
  for (auto& each : consumers) {
    numbers.push_back(std::async(std::launch::async, [&] {
      // For less time than a consumer needs to find out that it is not known.
      for (const auto until = std::chrono::steady_clock::now() + 120s;
           std::chrono::steady_clock::now() < until;) {
        try {
          if (const auto next = each.next(200ms)) {
            return next->number();
          }
        } catch (const gpushm::error& why) {
          EXPECT_EQ(why.code(), errc::peer_died) << why.what();
        }
      }
      return std::uint64_t{0};
    }));
  }
  // Each of those that join gets the items that are published then.
  std::vector<std::uint64_t> got;
  for (auto& each : numbers) {
    while (each.wait_for(500ms) != std::future_status::ready) {
      follows.does("fill_items 1");
    }
    got.push_back(each.get());
  }
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](std::uint64_t each) { return each != 0; }))
      << testing::PrintToString(got);
}

TEST_F(lost_broker, reports_what_nobody_has) {
  start();
  {
    member creator(socket_);
    for (const std::string name : {"a", "b", "kept"}) {
      creator.does("create " + name + " persistent 1");
      ASSERT_EQ(creator.does("publish " + name), "ok");
    }
    creator.does("create leased leased 1");
    ASSERT_EQ(creator.does("publish leased"), "ok");
    connect().remove("b");
  }
  member reader(socket_);
  reader.does("open kept");
  lose({"--return-ms", "1500"});
  EXPECT_NE(broker_->keeper().wait_for_line(
                "1 persistent segments of .* were lost with the broker and its keeper.*: a$",
                10s,
                gpushm_testing::stream::err),
            "")
      << log();
  EXPECT_EQ(connect().list().size(), 1U);
  // It is too late now, also for a successor.
  lose({"--return-ms", "0"});
  EXPECT_NE(broker_->keeper().wait_for_line(
                "1 persistent segments of .* were lost.*: kept$", 10s, gpushm_testing::stream::err),
            "")
      << log();
  EXPECT_TRUE(connect().list().empty());
  EXPECT_TRUE(eventually([&] { return reader.does("state kept") == "broker-gone"; }, 15s));
}

TEST_F(lost_broker, does_not_get_back_what_was_removed_or_replaced) {
  start();
  member reader(socket_);
  {
    member creator(socket_);
    for (const std::string name : {"removed", "replaced", "late"}) {
      creator.does("create " + name + " persistent 1");
      ASSERT_EQ(creator.does("publish " + name), "ok");
      reader.does("open " + name);
    }
  }
  connect().remove("removed");
  connect().remove("replaced");
  member second(socket_);
  const std::string newer = second.does("create replaced persistent 2");
  ASSERT_EQ(second.does("publish replaced"), "ok");
  reader.process().kill(SIGSTOP);
  lose();
  ASSERT_TRUE(has("replaced", newer));
  member third(socket_);
  const std::string latest = third.does("create late persistent 3");
  ASSERT_EQ(third.does("publish late"), "ok") << "while the reader was stopped";
  reader.process().kill(SIGCONT);
  for (const std::string name : {"removed", "replaced", "late"}) {
    EXPECT_TRUE(eventually(
        [&] {
          const std::string state = reader.does("state " + name);
          return state == "broker-gone" || state == "removed";
        },
        10s));
  }
  std::this_thread::sleep_for(300ms);  // gives it time to hand back what it must not
  EXPECT_TRUE(has("replaced", newer));
  EXPECT_TRUE(has("late", latest));
  EXPECT_EQ(connect().list().size(), 2U);
}

// ---- hostile members ----

/// What a member is given for a segment of one page.
struct holding {
  wire::reserve offer;
  gpushm::base::unique_fd chunk;
  std::vector<std::byte> metadata;
};

class lost_broker_with_hostile_member : public lost_broker {
 protected:
  /// A persistent one, published with one byte, by its creator.
  holding create(raw_session& session, const std::string& name, gpushm::lifetime lifetime) {
    holding result;
    result.offer = gpushm_testing::reserve_pages(name, 1);
    result.offer.lifetime = lifetime;
    result.metadata = {std::byte{42}};
    result.chunk = gpushm_testing::make_chunk(page_);
    const auto reply = session.request(result.offer);
    const auto* const reserved = body_of<wire::reserved>(reply);
    EXPECT_TRUE(reserved != nullptr && reserved->receipt);
    result.offer.generation = reserved->generation;
    result.offer.receipt = reserved->receipt;
    const std::array<int, 1> chunk{result.chunk.get()};
    EXPECT_TRUE(body_of<wire::done>(
        session.request(wire::attach{reserved->generation, 0, {page_}}, chunk)));
    EXPECT_TRUE(
        body_of<wire::done>(session.request(wire::publish{reserved->generation, result.metadata})));
    return result;
  }
  /// As an opener of `created`.
  holding open(raw_session& session, const holding& created) {
    holding result;
    result.offer = created.offer;
    result.metadata = created.metadata;
    auto reply = session.request(wire::open{created.offer.name});
    const auto* const opened = body_of<wire::opened>(reply);
    EXPECT_TRUE(opened != nullptr && opened->receipt);
    result.offer.receipt = opened->receipt;
    result.offer.creator_uid = opened->segment.creator_uid;
    result.chunk = std::move(reply.descriptors.at(0));
    return result;
  }
  std::optional<errc> attach(raw_session& session, const holding& holding) {
    const std::array<int, 1> chunk{holding.chunk.get()};
    return failure_of(session.request(wire::attach{holding.offer.generation, 0, {page_}}, chunk));
  }

  const std::uint64_t page_ = 4'096;
};

TEST_F(lost_broker_with_hostile_member, believes_nobody_without_a_valid_receipt) {
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  const holding leased = create(first, "leased", gpushm::lifetime::leased);
  const holding another = create(first, "another", gpushm::lifetime::persistent);
  auto second = greeted();
  const holding opened = open(second, created);
  const holding opened_leased = open(second, leased);
  EXPECT_NE(opened.offer.receipt, created.offer.receipt) << "an opener is not the creator";
  EXPECT_EQ(failure_of(second.request(opened.offer)), errc::already_exists) << "nothing is lost";
  lose();

  auto session = greeted();
  const auto reply_to = [&](const holding& valid,
                            const std::function<void(wire::reserve&)>& change) {
    wire::reserve offer = valid.offer;
    change(offer);
    return failure_of(session.request(offer));
  };
  for (const holding* const valid : {&created, &opened}) {
    EXPECT_EQ(reply_to(*valid, [](auto& o) { o.receipt.reset(); }), errc::permission_denied);
    for (std::size_t i = 0; i != created.offer.receipt->size(); ++i) {
      EXPECT_EQ(reply_to(*valid, [&](auto& o) { o.receipt->at(i) ^= std::byte{1}; }),
                errc::permission_denied);
    }
    EXPECT_EQ(reply_to(*valid, [](auto& o) { o.name = "v"; }), errc::permission_denied);
    EXPECT_EQ(reply_to(*valid, [](auto& o) { ++o.generation; }), errc::permission_denied);
    EXPECT_EQ(reply_to(*valid, [&](auto& o) { o.receipt = another.offer.receipt; }),
              errc::permission_denied);
    // Facts that the receipt does not cover, but the list of segments does.
    EXPECT_EQ(reply_to(*valid, [](auto& o) { o.size_bytes -= 1; }), errc::gone_or_replaced);
    EXPECT_EQ(reply_to(*valid,
                       [](auto& o) {
                         o.allocated_bytes += 4'096;
                         o.chunk_count += 1;
                       }),
              errc::gone_or_replaced);
    EXPECT_EQ(reply_to(*valid, [](auto& o) { o.lifetime = gpushm::lifetime::leased; }),
              errc::gone_or_replaced);
    EXPECT_EQ(reply_to(*valid, [](auto& o) { o.offset_bytes = 8; }), errc::gone_or_replaced);
  }
  EXPECT_EQ(reply_to(opened, [](auto& o) { o.creator_uid += 1; }), errc::gone_or_replaced);
  EXPECT_EQ(reply_to(opened_leased, [](auto& /*o*/) {}), errc::permission_denied)
      << "a reader hands back leased memory";
  EXPECT_TRUE(connect().list().empty()) << "something of that was accepted";

  // Other memory in a valid frame: fails where a creation fails.
  const auto again = session.request(opened.offer);
  ASSERT_TRUE(body_of<wire::reserved>(again));
  EXPECT_EQ(body_of<wire::reserved>(again)->receipt, opened.offer.receipt)
      << "it has become the creator";
  EXPECT_EQ(failure_of(session.request(wire::attach{opened.offer.generation, 0, {2 * page_}})),
            errc::wrong_descriptor_count);
  ASSERT_EQ(attach(session, opened), std::nullopt);
  EXPECT_EQ(failure_of(session.request(wire::publish{opened.offer.generation, {std::byte{43}}})),
            errc::permission_denied)
      << "with other metadata";
  EXPECT_TRUE(connect().list().empty());
  // It does not finish: the honest one still can.
  session.hang_up();
  auto honest = greeted();
  EXPECT_TRUE(eventually(
      [&] { return body_of<wire::reserved>(honest.request(created.offer)) != nullptr; }, 10s));
  ASSERT_EQ(attach(honest, created), std::nullopt);
  EXPECT_TRUE(body_of<wire::done>(
      honest.request(wire::publish{created.offer.generation, created.metadata})));
  EXPECT_EQ(failure_of(honest.request(opened.offer)), errc::already_exists);
  // Once it has been removed, nobody brings it back.
  EXPECT_TRUE(body_of<wire::done>(honest.request(wire::remove{"w"})));
  for (const holding* const valid : {&created, &opened}) {
    EXPECT_EQ(failure_of(honest.request(valid->offer)), errc::gone_or_replaced);
  }
}

TEST_F(lost_broker_with_hostile_member, receipts_are_for_one_uid) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become members of several uids";
  }
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  lose();
  ASSERT_EQ(::seteuid(other_uid), 0);
  auto thief = raw_session::greeted(socket_);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(failure_of(thief.request(created.offer)), errc::permission_denied);
  auto honest = greeted();
  EXPECT_TRUE(body_of<wire::reserved>(honest.request(created.offer)));
}

TEST_F(lost_broker_with_hostile_member, names_wait_for_those_that_have_them) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become members of several uids";
  }
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  lose();
  ASSERT_EQ(::seteuid(other_uid), 0);
  auto thief = raw_session::greeted(socket_);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(failure_of(thief.request(gpushm_testing::reserve_pages("w", 1))), errc::writer_ending);
  EXPECT_TRUE(body_of<wire::reserved>(thief.request(gpushm_testing::reserve_pages("v", 1))));
  auto honest = greeted();
  ASSERT_TRUE(body_of<wire::reserved>(honest.request(created.offer)));
  ASSERT_EQ(attach(honest, created), std::nullopt);
  ASSERT_TRUE(body_of<wire::done>(
      honest.request(wire::publish{created.offer.generation, created.metadata})));
  EXPECT_EQ(failure_of(thief.request(gpushm_testing::reserve_pages("w", 1))), errc::already_exists);
}

TEST_F(lost_broker_with_hostile_member, gives_way_to_the_creator_of_what_it_does_not_hand_back) {
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  auto second = greeted();
  const holding opened = open(second, created);
  lose();

  auto hostile = greeted();
  ASSERT_TRUE(body_of<wire::reserved>(hostile.request(opened.offer)));
  auto another = greeted();
  EXPECT_EQ(failure_of(another.request(opened.offer)), errc::already_exists) << "at once";
  auto creator = greeted();
  ASSERT_TRUE(body_of<wire::reserved>(creator.request(created.offer)));
  EXPECT_EQ(attach(hostile, opened), errc::already_exists);
  EXPECT_EQ(failure_of(hostile.request(opened.offer)), errc::already_exists);
  ASSERT_EQ(attach(creator, created), std::nullopt);
  ASSERT_TRUE(body_of<wire::done>(
      creator.request(wire::publish{created.offer.generation, created.metadata})));
  EXPECT_TRUE(has("w", std::to_string(created.offer.generation)));
  EXPECT_EQ(failure_of(hostile.request(opened.offer)), errc::already_exists);
}

/// Both have attached everything, and publish by a generation that names the one that came later.
TEST_F(lost_broker_with_hostile_member, who_has_given_way_does_not_publish_for_the_other) {
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  auto second = greeted();
  const holding opened = open(second, created);
  lose();

  auto reader = greeted();
  ASSERT_TRUE(body_of<wire::reserved>(reader.request(opened.offer)));
  ASSERT_EQ(attach(reader, opened), std::nullopt);
  auto creator = greeted();
  ASSERT_TRUE(body_of<wire::reserved>(creator.request(created.offer)));
  ASSERT_EQ(attach(creator, created), std::nullopt);
  const wire::publish publication{created.offer.generation, created.metadata};
  EXPECT_EQ(failure_of(reader.request(publication)), errc::already_exists);
  ASSERT_TRUE(body_of<wire::done>(creator.request(publication)));
  EXPECT_EQ(connect().stat("w").leases, 1U);
  EXPECT_EQ(failure_of(reader.request(publication)), errc::already_published);
}

TEST_F(lost_broker_with_hostile_member, gives_way_to_another_reader_after_some_time) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become members of several uids";
  }
  start();
  auto first = greeted();
  const holding created = create(first, "w", gpushm::lifetime::persistent);
  const auto greeted_as_another = [&] {
    static_cast<void>(connect());
    EXPECT_EQ(::seteuid(other_uid), 0);
    auto result = raw_session::greeted(socket_);
    EXPECT_EQ(::seteuid(0), 0);
    return result;
  };
  auto second = greeted_as_another();
  const holding hostile_one = open(second, created);
  auto third = greeted();
  const holding honest_one = open(third, created);
  lose();

  auto hostile = greeted_as_another();
  ASSERT_TRUE(body_of<wire::reserved>(hostile.request(hostile_one.offer)));
  auto honest = greeted();
  ASSERT_TRUE(eventually(
      [&] {
        // To begin again does not prolong its time.
        hostile.send(wire::release{.generation = created.offer.generation, .count = 1});
        static_cast<void>(hostile.request(hostile_one.offer));
        return body_of<wire::reserved>(honest.request(honest_one.offer)) != nullptr;
      },
      30s));
  EXPECT_EQ(attach(hostile, hostile_one), errc::already_exists);
  ASSERT_EQ(attach(honest, honest_one), std::nullopt);
  ASSERT_TRUE(body_of<wire::done>(
      honest.request(wire::publish{created.offer.generation, created.metadata})));
  EXPECT_TRUE(has("w", std::to_string(created.offer.generation)));
}

TEST_F(lost_broker_with_hostile_member, survives_any_list_of_segments) {
  std::mt19937_64 random(5);
  const std::string path = run_dir_ + "/locks/d.default.segments";
  start();
  for (int round = 0; round != 6; ++round) {
    {
      member creator(socket_);
      creator.does("create w" + std::to_string(round) + " persistent 1");
      ASSERT_EQ(creator.does("publish w" + std::to_string(round)), "ok");
    }
    kill_all();
    std::string text = text_of(path);
    ASSERT_GT(text.size(), 1'000U);
    const std::size_t first = round % 2 == 0 ? 0 : 512;
    for (int i = 0; i != 200; ++i) {
      text[first + random() % (text.size() - first)] = static_cast<char>(random());
    }
    text.resize(text.size() - random() % 700);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    start();
    ASSERT_NO_THROW(static_cast<void>(connect().list())) << log();
  }
}

// ---- many ----

TEST_F(lost_broker, gets_everything_back_from_many_processes_again_and_again) {
  start();
  constexpr std::size_t members = 12;
  constexpr std::size_t segments = 6;
  const auto name_of = [](std::size_t owner, std::size_t index) {
    return "m" + std::to_string(owner) + "/" + std::to_string(index);
  };
  std::vector<member> processes;
  std::vector<std::vector<std::string>> generations(members);
  for (std::size_t i = 0; i != members; ++i) {
    processes.emplace_back(socket_);
    for (std::size_t k = 0; k != segments; ++k) {
      generations[i].push_back(processes[i].does("create " + name_of(i, k) +
                                                 (k % 2 == 0 ? " persistent " : " leased ") +
                                                 std::to_string(100 * i + k)));
      ASSERT_EQ(processes[i].does("publish " + name_of(i, k)), "ok");
    }
  }
  for (std::size_t i = 0; i != members; ++i) {  // each has those of two others
    for (std::size_t k = 0; k != segments; ++k) {
      for (const std::size_t distance : {1U, 5U}) {
        const std::size_t owner = (i + distance) % members;
        ASSERT_EQ(processes[i].does("open " + name_of(owner, k)), generations[owner][k]);
      }
    }
  }
  std::vector<std::string> files;
  for (member& each : processes) {
    files.push_back(each.does("files"));
  }
  const auto files_of_broker = [&] {
    return gpushm_testing::total(gpushm_testing::count_descriptors(broker_->pid()));
  };
  const std::size_t broker_files = files_of_broker();
  const std::size_t losses = std::stoul(variable("GPUSHM_LOSSES", "4"));
  for (std::size_t loss = 0; loss != losses; ++loss) {
    lose();
    for (std::size_t i = 0; i != members; ++i) {
      for (std::size_t k = 0; k != segments; ++k) {
        ASSERT_TRUE(has(name_of(i, k), generations[i][k])) << name_of(i, k) << '\n' << log();
      }
    }
    for (std::size_t i = 0; i != members; ++i) {
      for (std::size_t k = 0; k != segments; ++k) {
        for (const std::size_t distance : {0U, 1U, 5U}) {
          const std::size_t owner = (i + distance) % members;
          const std::string name = name_of(owner, k);
          EXPECT_TRUE(eventually([&] { return processes[i].does("state " + name) == "live"; }, 15s))
              << i << " has not " << name;
        }
        // Also of those whose turn is later.
        EXPECT_TRUE(eventually([&] { return connect().stat(name_of(i, k)).leases == 3U; }, 15s))
            << connect().stat(name_of(i, k)).leases << " leases of " << name_of(i, k)
            << " after loss " << loss;
      }
      EXPECT_TRUE(eventually([&] { return processes[i].does("files") == files[i]; }, 10s));
    }
    EXPECT_TRUE(eventually([&] { return files_of_broker() == broker_files; }, 10s))
        << files_of_broker() << " and before " << broker_files;
  }
  member reader(socket_);
  for (std::size_t i = 0; i != members; ++i) {
    for (std::size_t k = 0; k != segments; ++k) {
      reader.does("open " + name_of(i, k));
      EXPECT_EQ(reader.does("holds " + name_of(i, k) + " " + std::to_string(100 * i + k)), "same");
    }
  }
}

}  // namespace
