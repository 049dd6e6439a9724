// SPDX-License-Identifier: Apache-2.0
#include "tests/brokerd/broker_scenarios.hpp"

#include <algorithm>
#include <csignal>
#include <sstream>
#include <stdexcept>

#include "protocol/wire/messages.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

namespace {

using gpushm_testing::body_of;
using gpushm_testing::child;
using gpushm_testing::own_program;
using gpushm_testing::publish_segment;
using gpushm_testing::raw_session;
using gpushm_testing::reserve_exported;
namespace wire = gpushm::wire;

// ---- confirmations ----

/// The exporter is asked once, and the open is answered once.
void confirm_an_open(world& world) {
  wire::open wanted;
  wanted.name = "a";
  wanted.timeout_ms = static_cast<std::uint32_t>(gpushm_testing::scaled_timeout(20s).count());
  EXPECT_TRUE(world.asking->send(wanted));
  const auto question = world.asked->receive(20s);
  const auto* const asked = body_of<wire::confirm>(question);
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->questions.size(), 1U);
  EXPECT_TRUE(world.asked->send(wire::confirmed{
      asked->questions, std::vector(asked->questions.size(), wire::verdict::unchanged)}));
  int waits = 0;
  for (;;) {
    const auto reply = world.asking->receive(20s);
    if (body_of<wire::opened>(reply) != nullptr) {
      break;
    }
    ASSERT_NE(body_of<wire::waiting>(reply), nullptr);
    ++waits;
  }
  EXPECT_EQ(waits, 1);
}

void expect_silence(raw_session& session) {
  const auto got = session.receive(50ms);
  EXPECT_FALSE(got.closed);
  EXPECT_FALSE(got.message);
}

// ---- a client that is stopped ----

/// More than a socket has room for, and than the broker queues.
constexpr int unread_replies = 240;

void start_reader(world& world) {
  world.create("b", false);
  world.create("c", false);
  world.process = child::start(
      {.argv = {own_program("stopped_reader"), world.socket, std::to_string(unread_replies)}});
  world.process->wait_for_line("^ready$", 20s);
}

void stop_reader(world& world) {
  world.process->write("send\n");
  world.process->wait_for_line("^sent$", 20s);
  world.process->kill(SIGSTOP);
  for (gpushm::segment& each : world.created) {
    each.publish();
  }
  for (int i = 0; i < 30; ++i) {  // meanwhile the broker takes turns, and queues more replies
    EXPECT_EQ(world.exporter->list().size(), 2U);
  }
}

void continue_reader(world& world) {
  world.process->kill(SIGCONT);
  world.process->write("read\n");
  EXPECT_EQ(world.process->wait_exit(20s), gpushm_testing::exited(0));
  std::vector<std::string> replies;
  std::vector<std::string> events;
  bool has_resync = false;
  std::istringstream lines(world.process->text(gpushm_testing::stream::out));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("answer ")) {
      replies.push_back(line.substr(7));
    } else if (line == "event resync") {
      has_resync = true;
    } else if (line.starts_with("event ")) {
      events.push_back(line.substr(6));
    }
  }
  std::vector<std::string> expected(unread_replies);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::to_string(i + 1);
  }
  EXPECT_EQ(replies, expected);
  if (has_resync) {  // in place of either, or of both
    EXPECT_LE(events.size(), 1U) << events.front() << ", " << events.back();
  } else {
    EXPECT_EQ(events, (std::vector<std::string>{"published b", "published c"}));
  }
}

// ---- a writer that ends without a goodbye ----

/// A process that has published "kv", which another has open.
void start_writer(world& world) {
  world.process =
      child::start({.argv = {own_program("fence_writer"), world.socket, "kv", "killed", "0"}});
  world.process->wait_for_line("^ready$", 20s);
  world.open("kv");
  world.events.emplace(world.importer->subscribe(""));
}

/// It ends its connection, and writes on.
void hang_up_writer(world& world) {
  world.process->write("go\n");
  EXPECT_TRUE(eventually([&] { return world.exporter->stat("kv").ending == 1; }, 20s));
}

/// Until there is no event for `time`; -1: a resync is among them.
int deaths_within(world& world, std::chrono::milliseconds time) {
  int deaths = 0;
  bool has_resync = false;
  while (const auto got = world.events->next(time)) {
    has_resync = has_resync || got->kind == gpushm::event_kind::resync;
    deaths += got->kind == gpushm::event_kind::peer_died ? 1 : 0;
  }
  return has_resync && deaths == 0 ? -1 : deaths;
}

/// A subscriber gets one event, or a resync in its place.
void expect_a_death(world& world) {
  const auto got = world.events->next(20s);
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->kind == gpushm::event_kind::peer_died ||
              got->kind == gpushm::event_kind::resync);
}

/// Its lease has ended, and only that.
void expect_the_writer_gone(world& world) {
  world.expect_leases("kv", 1);
  const auto shown = world.exporter->stat("kv");
  EXPECT_EQ(shown.ending, 0U);
  EXPECT_FALSE(shown.creator_alive);
  EXPECT_EQ(world.opened.back().state(), gpushm::segment_state::exporter_gone);
  EXPECT_LE(deaths_within(world, 50ms), 0);
}

const std::vector all{
    scenario{"list",
             [](world& world) { world.create("a"); },
             [](world& world) { EXPECT_EQ(world.importer->list().size(), 1U); },
             [](world& world) { world.expect_leases("a", 1); }},
    scenario{"connect",
             [](world&) {},
             [](world& world) { EXPECT_TRUE(world.connect().list().empty()); },
             [](world&) {}},
    scenario{"create",
             [](world&) {},
             [](world& world) { world.create("a", false); },
             [](world& world) {
               EXPECT_FALSE(world.importer->try_open("a"));
               world.created.back().publish();
               world.open("a");
               world.expect_contents();
               world.expect_leases("a", 2);
             }},
    scenario{"create_in_batches",
             [](world&) {},
             [](world& world) { world.create("a", false, several_batches); },
             [](world& world) {
               world.created.back().publish();
               world.open("a");
               world.expect_contents();
             }},
    scenario{"open_in_batches",
             [](world& world) { world.create("a", true, several_batches); },
             [](world& world) { world.open("a"); },
             [](world& world) {
               world.expect_contents();
               world.expect_leases("a", 2);
             }},
    scenario{"publish",
             [](world& world) { world.create("a", false); },
             [](world& world) { world.created.back().publish(); },
             [](world& world) {
               world.open("a");
               world.expect_contents();
             }},
    scenario{"open",
             [](world& world) { world.create("a"); },
             [](world& world) { world.open("a"); },
             [](world& world) {
               world.expect_contents();
               world.expect_leases("a", 2);
             }},
    scenario{"open_that_waits",
             [](world& world) {
               world.create("a", false);
               world.waiting = std::async(std::launch::async, [&world] { world.open("a"); });
               EXPECT_TRUE(eventually([&] { return world.exporter->list().size() <= 1; }, 10s));
             },
             [](world& world) {
               world.created.back().publish();
               world.waiting.get();
             },
             [](world& world) {
               world.expect_contents();
               world.expect_leases("a", 2);
             }},
    scenario{"open_many",
             [](world& world) {
               for (const char* const each : {"a", "b", "c", "d"}) {
                 world.create(each);
               }
             },
             [](world& world) {
               const std::vector<std::string> names{"a", "b", "none", "c", "d"};
               int failed = 0;
               for (gpushm::open_result& each : world.importer->open_many(names)) {
                 if (each) {
                   world.opened.push_back(std::move(each.value()));
                 } else {
                   ++failed;
                 }
               }
               EXPECT_EQ(failed, 1);
               EXPECT_EQ(world.opened.size(), 4U);
             },
             [](world& world) {
               world.expect_contents();
               world.expect_leases("d", 2);
             }},
    scenario{"event",
             [](world& world) {
               world.create("a", false);
               world.events.emplace(world.importer->subscribe(""));
             },
             [](world& world) {
               world.created.back().publish();
               // The event, or a resync in its place; not both, and none is lost.
               const auto got = world.events->next(20s);
               ASSERT_TRUE(got);
               EXPECT_TRUE(got->kind == gpushm::event_kind::published ||
                           got->kind == gpushm::event_kind::resync);
             },
             [](world& world) {
               world.exporter->remove("a");
               std::optional<gpushm::event> got;
               do {  // resyncs may come first
                 got = world.events->next(20s);
               } while (got && got->kind == gpushm::event_kind::resync);
               ASSERT_TRUE(got);
               EXPECT_EQ(got->kind, gpushm::event_kind::removed);
               EXPECT_EQ(got->name, "a");
               EXPECT_EQ(world.created.back().state(), gpushm::segment_state::removed);
             }},
    scenario{"remove",
             [](world& world) {
               world.create("a");
               world.open("a");
             },
             [](world& world) { world.exporter->remove("a"); },
             [](world& world) {
               EXPECT_EQ(world.opened.back().state(), gpushm::segment_state::removed);
               EXPECT_FALSE(world.importer->try_open("a"));
               world.create("a");
               world.opened.clear();
               world.open("a");
               world.expect_contents();
             }},
    scenario{"release",
             [](world& world) {
               world.create("a");
               world.open("a");
             },
             [](world& world) {
               world.opened.clear();
               EXPECT_TRUE(eventually([&] { return world.exporter->stat("a").leases == 1; }, 20s));
             },
             [](world& world) {
               world.open("a");
               world.expect_contents();
               world.expect_leases("a", 2);
             }},
    scenario{"disconnect",
             [](world& world) {
               world.create("a");
               world.open("a");
             },
             [](world& world) {
               world.opened.clear();
               world.importer.reset();
               EXPECT_TRUE(eventually([&] { return world.exporter->stat("a").leases == 1; }, 20s));
             },
             [](world&) {}},
    scenario{"confirm",
             [](world& world) {
               world.asked = raw_session::greeted(world.socket);
               EXPECT_NE(publish_segment(*world.asked, reserve_exported("a")), 0U);
               world.asking = raw_session::greeted(world.socket);
             },
             confirm_an_open,
             [](world& world) {
               expect_silence(*world.asking);
               expect_silence(*world.asked);
               world.expect_leases("a", 2);
               world.asking->send(wire::bye{});
               world.asked->send(wire::bye{});
             }},
    scenario{"stopped_client", start_reader, stop_reader, continue_reader},
    scenario{"writer_dies",
             start_writer,
             [](world& world) {
               world.process->kill(SIGKILL);
               expect_a_death(world);
             },
             expect_the_writer_gone},
    scenario{"writer_hangs_up",
             start_writer,
             hang_up_writer,
             [](world& world) {
               const auto shown = world.exporter->stat("kv");
               EXPECT_EQ(shown.ending, 1U);
               EXPECT_EQ(shown.ending_waits, gpushm::fence_wait::process);
               EXPECT_EQ(shown.leases, 2U);
               EXPECT_EQ(deaths_within(world, 50ms), 0);
               world.process->kill(SIGKILL);
               expect_a_death(world);
               expect_the_writer_gone(world);
             }},
    scenario{"fence",
             [](world& world) {
               start_writer(world);
               hang_up_writer(world);
             },
             [](world& world) {
               world.process->kill(SIGKILL);
               expect_a_death(world);
             },
             expect_the_writer_gone},
};

}  // namespace

const std::vector<scenario>& scenarios() {
  return all;
}

const scenario& scenario_of(const std::string& name) {
  const auto match =
      std::find_if(all.begin(), all.end(), [&](const scenario& each) { return name == each.name; });
  if (match == all.end()) {
    throw std::invalid_argument(name);
  }
  return *match;
}

}  // namespace gpushm_tests
