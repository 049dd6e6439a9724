// SPDX-License-Identifier: Apache-2.0
// One connection under load: many threads, many packets in both directions, and its end.
#include "client/session/connection.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/files/sanitizers.hpp"
#include "client/segment/offers.hpp"
#include "client/session/open_reports.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::deadline_after;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using gpushm_tests::scripted_broker;

/// Collects the library's log lines during its lifetime.
class logged_lines {
 public:
  logged_lines() {
    set_log_sink([this](log_level level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(text));
    });
  }
  logged_lines(const logged_lines&) = delete;
  logged_lines& operator=(const logged_lines&) = delete;
  ~logged_lines() { set_log_sink({}); }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// ---- reports ----

std::vector<std::uint64_t> counted(std::size_t count) {
  std::vector<std::uint64_t> result(count);
  std::iota(result.begin(), result.end(), std::uint64_t{0});
  return result;
}

// As if other threads add values after the list is full and before it is sent.
TEST(open_reports, take_at_most_one_report) {
  open_reports reports;
  for (std::uint64_t i = 0; i < 2 * wire::max_batch + 5; ++i) {
    reports.add_latency(i, i + 1);
    if (i < wire::max_batch + 1) {
      reports.add_failure(i);
    }
  }
  reports.add_cached();
  std::vector<std::uint64_t> times;
  std::vector<std::uint64_t> imports;
  std::vector<std::uint64_t> failures;
  std::uint64_t cached = 0;
  std::size_t packets = 0;
  while (const auto report = reports.take()) {
    ++packets;
    EXPECT_LE(report->open_ns.size(), wire::max_batch);
    EXPECT_LE(report->failures.size(), wire::max_batch);
    times.insert(times.end(), report->open_ns.begin(), report->open_ns.end());
    EXPECT_EQ(report->import_ns.size(), report->open_ns.size());
    imports.insert(imports.end(), report->import_ns.begin(), report->import_ns.end());
    failures.insert(failures.end(), report->failures.begin(), report->failures.end());
    cached += report->cached;
    EXPECT_EQ(reports.due().has_value(), packets < 3) << packets;
  }
  EXPECT_EQ(packets, 3U);
  EXPECT_EQ(times, counted(2 * wire::max_batch + 5));
  imports.insert(imports.begin(), 0);
  EXPECT_EQ(imports, counted(2 * wire::max_batch + 6));
  EXPECT_EQ(failures, counted(wire::max_batch + 1));
  EXPECT_EQ(cached, 1U);
}

TEST(open_reports, due_after_a_second_or_when_full) {
  open_reports reports;
  EXPECT_FALSE(reports.due());
  reports.add_cached();
  EXPECT_FALSE(reports.due()) << "a cached open alone does not make a report due";
  EXPECT_TRUE(reports.add_latency(1, 1));
  EXPECT_GT(*reports.due(), std::chrono::steady_clock::now());
  for (std::size_t i = 0; i < wire::max_batch - 2; ++i) {
    EXPECT_FALSE(reports.add_latency(1, 1));
  }
  EXPECT_TRUE(reports.add_latency(1, 1));
  EXPECT_LE(*reports.due(), std::chrono::steady_clock::now());
}

TEST(open_reports, items_are_due_once_for_each_report) {
  open_reports reports;
  EXPECT_TRUE(reports.add_item(4096));
  EXPECT_GT(*reports.due(), std::chrono::steady_clock::now());
  EXPECT_FALSE(reports.add_item(4096));
  const auto first = reports.take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->items, 2U);
  EXPECT_EQ(first->item_bytes, 8192U);
  EXPECT_FALSE(reports.due());
  EXPECT_FALSE(reports.take());
  EXPECT_TRUE(reports.add_latency(1, 1));
  EXPECT_FALSE(reports.add_item(1)) << "due already";
  EXPECT_EQ(reports.take()->items, 1U);
}

TEST(open_reports, no_item_is_lost_beside_a_report) {
  open_reports reports;
  constexpr std::uint64_t each = 20'000;
  constexpr std::uint64_t threads = 3;
  std::uint64_t items = 0;
  std::atomic<std::uint64_t> running{threads};
  std::vector<std::jthread> adding;
  for (std::uint64_t i = 0; i < threads; ++i) {
    adding.emplace_back([&] {
      for (std::uint64_t j = 0; j < each; ++j) {
        static_cast<void>(reports.add_item(1));
      }
      --running;
    });
  }
  // As the connection's thread: it takes only what is due.
  for (bool last = false; !last;) {
    last = running == 0;
    if (reports.due()) {
      const auto report = reports.take();
      items += report ? report->items : 0;
    }
  }
  EXPECT_EQ(items, threads * each);
  EXPECT_FALSE(reports.due());
}

TEST(open_reports, are_bounded_when_not_taken) {
  open_reports reports;
  for (std::size_t i = 0; i < open_reports::max_kept + 1000; ++i) {
    reports.add_latency(i, i);
  }
  std::size_t taken = 0;
  while (const auto report = reports.take()) {
    taken += report->open_ns.size();
  }
  EXPECT_EQ(taken, open_reports::max_kept);
}

// ---- with a broker ----

class connected : public testing::Test {
 protected:
  connected() { broker_.emplace(broker::start({.socket_path = path_})); }

  std::shared_ptr<connection> connect() {
    return connection::establish(path_, scaled_timeout(10s));
  }
  /// Publishes memory bound to `exporter`, so that each open sends it a question.
  static gpushm::generation publish_bound(connection& exporter, const std::string& name) {
    wire::reserve wanted{name, 4096, 4096, {device_kind::gpu, "GPU-x", "", 0}, 0};
    wanted.backend = backend::cuda_ipc;
    wanted.ticket = {std::byte{1}};
    auto got = exporter.request(wanted, {"share", name}, deadline_after(20s));
    got.granted.keep();
    const auto created = std::get<wire::reserved>(got.body).generation;
    static_cast<void>(
        exporter.request(wire::publish{created, {}}, {"share", name}, deadline_after(20s)));
    return created;
  }

  gpushm_testing::temp_dir directory_;
  std::string path_ = directory_ / "socket";
  std::optional<broker> broker_;
};

// Values of many threads go into one report: a list longer than the broker accepts would end the
// connection.
TEST_F(connected, concurrent_reports_are_no_violation) {
  constexpr std::uint64_t threads = 8;
  constexpr std::uint64_t each = 40'000;
  const auto client = connect();
  {
    std::vector<std::jthread> workers;
    for (std::uint64_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < each; ++i) {
          if (t % 2 == 0) {
            client->opened_in(2us, 1us);
          } else {
            client->open_failed(errc::gone_or_replaced);
          }
          if (i % 1000 == 0) {
            static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
          }
        }
      });
    }
  }
  EXPECT_FALSE(client->broken());
  static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
}

TEST_F(connected, reason_of_end_is_in_errors_and_log) {
  logged_lines lines;
  const auto client = connect();
  try {
    static_cast<void>(client->request(wire::done{}, {"test", "x"}, deadline_after(20s)));
    FAIL() << "a client must not send done";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::protocol_error);
  }
  EXPECT_TRUE(eventually([&] { return client->broken(); }, 10s));
  const std::string reason = "the broker at " + path_ +
                             " has ended this connection: a client sent a message that only "
                             "brokers send (use a client of protocol version 2)";
  try {
    static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
    FAIL() << "the connection is over";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::broker_gone);
    EXPECT_EQ(why.cause(), reason);
  }
  const auto has_line = [&] {
    const auto all = lines.all();
    return std::any_of(all.begin(), all.end(), [&](const std::string& line) {
      return line.find("2 ") == 0 && line.find(reason) != std::string::npos;
    });
  };
  EXPECT_TRUE(eventually(has_line, 10s));
}

TEST(connecting, continues_after_connections_that_are_closed_without_a_reply) {
  scripted_broker broker({}, false, 3);
  EXPECT_EQ(client::connect({.socket_path = broker.socket_path()}).broker().domain, "scripted");
}

TEST(connecting, ends_if_each_connection_is_closed_without_a_reply) {
  scripted_broker broker({}, false, 1'000'000);
  try {
    static_cast<void>(client::connect({.socket_path = broker.socket_path(), .request_limit = 1s}));
    FAIL() << "connected";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::broker_unreachable);
    EXPECT_NE(std::string(why.what()).find("closed the connection immediately"), std::string::npos);
  }
}

TEST(dropped, failure_without_request_has_reason) {
  scripted_broker broker([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    if (std::holds_alternative<wire::list>(asked.body)) {
      replies.push_back(
          {{0, wire::failure{0, errc::protocol_error, "the packet is malformed", "fix it"}},
           {},
           true});
    }
    return replies;
  });
  const auto client = connection::establish(broker.socket_path(), scaled_timeout(10s));
  try {
    static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
    FAIL();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::broker_gone);
    EXPECT_EQ(why.cause(),
              "the broker at " + broker.socket_path() +
                  " has ended this connection: the packet is malformed (fix it)");
  }
}

// A sender that waits for room in the socket does not block others with earlier deadlines.
TEST(senders, wait_until_their_own_deadlines) {
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  scripted_broker broker([held](const wire::message& asked) {
    held.wait();  // without reading
    std::vector<scripted_broker::reply> replies;
    if (std::holds_alternative<wire::list>(asked.body)) {
      replies.push_back({{asked.id, wire::listing{}}});
    }
    return replies;
  });
  const auto client = connection::establish(broker.socket_path(), scaled_timeout(10s));
  const auto list_within = [&](std::chrono::milliseconds timeout) {
    return client->request(wire::list{}, {"list", {}}, std::chrono::steady_clock::now() + timeout);
  };
  bool full = false;
  for (int i = 0; i < 10'000 && !full; ++i) {
    try {
      static_cast<void>(list_within(1ms));
    } catch (const error& why) {
      ASSERT_EQ(why.code(), errc::timed_out);
      full = why.cause() == "the broker does not read its socket";
    }
  }
  ASSERT_TRUE(full);
  // Answers to requests that timed out are dropped.
  std::jthread waiting([&] {
    EXPECT_TRUE(std::holds_alternative<wire::listing>(list_within(scaled_timeout(20s)).body));
  });
  std::this_thread::sleep_for(100ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(static_cast<void>(list_within(100ms)), error);
  client->release(5, 1, false);
  client->unsubscribe(7);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_timeout(5s));
  go_on.set_value();
}

TEST(subscriptions, that_time_out_are_ended_at_the_broker) {
  class ignoring final : public event_sink {
   public:
    void deliver(event /*news*/) override {}
    void broker_gone() override {}
  } sink;
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::uint64_t> ended{0};
  const scripted_broker broker([&](const wire::message& message) {
    std::vector<scripted_broker::reply> replies;
    if (std::holds_alternative<wire::subscribe>(message.body)) {
      asked = message.id;  // not answered
    } else if (const auto* end = std::get_if<wire::unsubscribe>(&message.body)) {
      ended = end->subscription;
      replies.push_back({{message.id, wire::done{}}});
    }
    return replies;
  });
  const auto client = connection::establish(broker.socket_path(), scaled_timeout(20s));
  wire::subscribed present;
  EXPECT_THROW(static_cast<void>(
                   client->subscribe("w", sink, present, std::chrono::steady_clock::now() + 200ms)),
               error);
  EXPECT_TRUE(eventually([&] { return ended != 0; }, 20s));
  EXPECT_EQ(ended, asked);
}

// ---- reconnecting ----

/// Sends a request and returns its error, if any.
std::optional<errc> list_with(client& client) {
  try {
    static_cast<void>(client.list());
  } catch (const error& why) {
    return why.code();
  }
  return std::nullopt;
}

// One thread reconnects, for as long as `timeout`; the others wait for it until their requests'
// deadlines.
TEST_F(connected, threads_during_reconnect_wait_until_their_own_deadlines) {
  auto client = client::connect(
      {.socket_path = path_, .timeout = scaled_timeout(20s), .request_limit = scaled_timeout(1s)});
  broker_.reset();
  constexpr int others = 4;
  std::atomic<int> timed_out{0};
  std::atomic<int> replied{0};
  std::vector<std::jthread> requesting;
  for (int i = 0; i < 1 + others; ++i) {
    requesting.emplace_back([&] {
      const auto code = list_with(client);
      EXPECT_TRUE(!code || code == errc::timed_out);
      ++(code ? timed_out : replied);
    });
  }
  EXPECT_TRUE(eventually([&] { return timed_out == others; }, 10s))
      << timed_out << " threads did not wait for the connecting thread's deadline";
  EXPECT_EQ(replied, 0);
  broker_.emplace(broker::start({.socket_path = path_}));
  requesting.clear();
  EXPECT_EQ(timed_out, others);
  EXPECT_EQ(replied, 1);
  EXPECT_EQ(list_with(client), std::nullopt);
}

TEST_F(connected, threads_during_reconnect_share_the_new_connection) {
  auto client = client::connect(
      {.socket_path = path_, .timeout = scaled_timeout(20s), .request_limit = scaled_timeout(20s)});
  broker_.reset();
  std::vector<std::jthread> requesting;
  for (int i = 0; i < 4; ++i) {
    requesting.emplace_back([&] { EXPECT_EQ(list_with(client), std::nullopt); });
  }
  std::this_thread::sleep_for(100ms);
  broker_.emplace(broker::start({.socket_path = path_}));
  requesting.clear();
  EXPECT_EQ(broker_->statistics().connections, 1U);
}

// ---- log lines ----

// The worker logs them while it answers for the exporter.
TEST_F(connected, log_sink_may_use_the_same_connection) {
  ::alarm(120);  // instead of a deadlock
  const auto exporter = connect();
  const auto importer = connect();
  exporter->worker().reply_for(publish_bound(*exporter, "bound"),
                               []() -> bool { throw std::runtime_error("this reply failed"); });
  std::promise<std::size_t> listed;
  set_log_sink([&](log_level, std::string_view text) {
    if (text == "this reply failed") {
      const auto got = exporter->request(wire::list{}, {"list", {}}, deadline_after(20s));
      listed.set_value(std::get<wire::listing>(got.body).segments.size());
    }
  });
  const auto requesting = std::async(std::launch::async, [&] {
    static_cast<void>(
        importer->open(wire::open{"bound", 0, 0, 0}, {"open", "bound"}, deadline_after(20s)));
  });
  EXPECT_EQ(listed.get_future().get(), 1U);
  set_log_sink({});
  ::alarm(0);
}

// ---- confirmations ----

struct flood {
  std::size_t importers;
  std::size_t names;
};
class confirmations : public connected, public testing::WithParamInterface<flood> {};

/// An exporter has two seconds for all of them, which is too short for a thousand where sanitizers
/// check each access.
constexpr std::size_t many_names = base::under_sanitizer ? 250 : 1'000;

// Each side's socket queues 277 small packets. An exporter that wrote before it read would block.
TEST_P(confirmations, of_many_concurrent_opens_all_arrive) {
  const auto exporter = connect();
  const auto shared = publish_bound(*exporter, "kv");
  std::once_flag stalled;
  exporter->worker().reply_for(shared, [&] {
    std::call_once(stalled, [] { std::this_thread::sleep_for(50ms); });
    return true;
  });
  std::vector<std::shared_ptr<connection>> importers;
  std::vector<std::future<std::vector<reply>>> calls;
  for (std::size_t i = 0; i < GetParam().importers; ++i) {
    importers.push_back(connect());
  }
  for (const auto& importer : importers) {
    calls.push_back(std::async(std::launch::async, [&] {
      return importer->open_many(
          wire::open_many{std::vector<std::string>(GetParam().names, "kv"), 0, 0},
          {"open", {}},
          deadline_after(20s));
    }));
  }
  std::size_t opened = 0;
  std::size_t replied = 0;
  for (auto& call : calls) {
    for (const reply& got : call.get()) {
      ++replied;
      opened += std::holds_alternative<wire::opened>(got.body) ? 1U : 0U;
    }
  }
  EXPECT_EQ(replied, GetParam().importers * GetParam().names);
  EXPECT_EQ(opened, replied);
  // It still answers.
  const auto begin = std::chrono::steady_clock::now();
  static_cast<void>(
      importers.front()->open(wire::open{"kv", 0, 0}, {"open", "kv"}, deadline_after(20s)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, scaled_timeout(10s));
}
INSTANTIATE_TEST_SUITE_P(both,
                         confirmations,
                         testing::Values(flood{5, 128}, flood{8, 128}, flood{4, many_names}));

// Invalid offers: nothing is mapped, but they are pending.
TEST(pending_offers, wait_until_settled) {
  const auto soon = [] { return std::chrono::steady_clock::now() + 50ms; };
  EXPECT_FALSE(offers::wait_for_others(soon()));
  const open_options options;
  auto first = std::make_unique<offers>(options);
  offers second(options);
  const auto nonsense = [] { return reply{wire::waiting{0, wire::segment{}, {}, {}}}; };
  first->map(nonsense(), "kv");
  EXPECT_FALSE(offers::wait_for_others(soon())) << "not settled in time";
  auto waits =
      std::async(std::launch::async, [] { return offers::wait_for_others(deadline_after(20s)); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  second.map(nonsense(), "kv");
  first.reset();
  second.settle({});
  EXPECT_TRUE(waits.get());
  EXPECT_FALSE(offers::wait_for_others(soon())) << "none are pending";
}

/// Replies of a worker to lists of questions.
class replying : public testing::Test {
 protected:
  replying()
      : worker_([this](wire::confirmed replies) {
          const std::lock_guard lock(mutex_);
          replies_.push_back(std::move(replies));
        }) {
    worker_.start();
  }
  std::vector<wire::confirmed> replies() {
    const std::lock_guard lock(mutex_);
    return replies_;
  }
  bool has_replied(std::size_t lists) {
    return eventually([&] { return replies().size() == lists; }, 20s);
  }

 private:
  std::mutex mutex_;
  std::vector<wire::confirmed> replies_;

 protected:
  lease_worker worker_;
};

TEST_F(replying, one_list_per_list_and_one_check_per_memory) {
  std::atomic<int> asked{0};
  worker_.reply_for(7, [&] { return ++asked != 0; });
  worker_.reply_for(8, [] { return false; });
  worker_.confirm({{1, 2, 3, 4}, {7, 8, 7, 9}});
  ASSERT_TRUE(has_replied(1));
  using enum wire::verdict;
  EXPECT_EQ(replies()[0],
            (wire::confirmed{{1, 2, 3, 4}, {unchanged, changed, unchanged, not_shared}}));
  EXPECT_EQ(asked, 1);
  worker_.confirm({{5}, {7}});
  ASSERT_TRUE(has_replied(2));
  EXPECT_EQ(asked, 2) << "it may have changed since";
}

TEST_F(replying, does_not_wait_for_a_slow_driver) {
  worker_.reply_for(7, [] { return true; });
  worker_.reply_for(8, [] {
    std::this_thread::sleep_for(20ms);
    return true;
  });
  worker_.reply_for(9, [] { return true; });
  worker_.confirm({{1, 2, 3}, {7, 8, 9}});
  ASSERT_TRUE(has_replied(2));
  EXPECT_EQ(replies()[0].questions, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(replies()[1].questions, std::vector<std::uint64_t>{3});
}

TEST_F(replying, queue_is_bounded_in_whole_lists) {
  std::promise<void> go;
  worker_.reply_for(1, [busy = go.get_future().share()] {
    busy.wait();
    return true;
  });
  worker_.confirm({{1}, {1}});
  const std::vector<std::uint64_t> full(wire::max_batch, 2);
  for (std::size_t i = 0; i < lease_worker::max_questions / wire::max_batch + 10; ++i) {
    worker_.confirm({full, full});
  }
  go.set_value();
  const auto taken = lease_worker::max_questions / wire::max_batch;
  // On a busy machine, a list may be answered in parts.
  const auto count = [&] {
    std::size_t sum = 0;
    for (const auto& each : replies()) {
      sum += each.questions.size();
    }
    return sum;
  };
  EXPECT_TRUE(eventually([&] { return count() >= taken * wire::max_batch; }, 20s));
  EXPECT_LE(count(), lease_worker::max_questions + 1);
}

/// Mappings that the driver takes 100 ms each to unmap.
class slow_listener final : public lease_listener {
 public:
  bool end_lost(gpushm::generation /*generation*/) noexcept override {
    std::this_thread::sleep_for(100ms);
    return ++ended_ % 40 != 0;
  }
  [[nodiscard]] int ended() const { return ended_; }

 private:
  std::atomic<int> ended_{0};
};

TEST_F(connected, exporter_confirms_while_mappings_end) {
  const auto exporter = connect();
  const auto importer = connect();
  slow_listener listener;
  exporter->worker().set_listener(&listener);
  exporter->worker().reply_for(publish_bound(*exporter, "kv"), [] { return true; });
  const auto doomed = publish_bound(*exporter, "doomed");
  static_cast<void>(
      importer->request(wire::remove{"doomed", doomed}, {"rm", "doomed"}, deadline_after(20s)));
  ASSERT_TRUE(eventually([&] { return listener.ended() > 0; }, 20s));
  static_cast<void>(importer->open(wire::open{"kv", 0, 0}, {"open", "kv"}, deadline_after(20s)));
  EXPECT_LT(listener.ended(), 40) << "the exporter ended all mappings before it answered";
  exporter->worker().set_listener(nullptr);
}

/// How often the threads of this process's connections have slept so far.
std::uint64_t sleeps_of_threads() {
  std::uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool ours = false;
    for (std::string line; std::getline(status, line);) {
      ours = ours || line == "Name:\tgpushm-client";
      if (ours && line.rfind("voluntary_ctxt_switches:", 0) == 0) {
        sum += std::stoull(line.substr(line.find('\t')));
      }
    }
  }
  return sum;
}

TEST_F(connected, thread_sleeps_while_a_caller_waits) {
  const auto client = connect();
  auto waiting = std::async(std::launch::async, [&] {
    const reply got =
        client->open(wire::open{"late", 0, 1500}, {"open", "late"}, deadline_after(20s));
    EXPECT_TRUE(std::holds_alternative<wire::failure>(got.body));
  });
  std::this_thread::sleep_for(100ms);
  client->opened_in(2us, 1us);  // wakes the thread
  std::this_thread::sleep_for(100ms);
  const auto before = sleeps_of_threads();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(sleeps_of_threads() - before, 50U);
  EXPECT_GT(sleeps_of_threads(), 0U) << "the thread was not found";
  waiting.get();
}

TEST_F(connected, events_arrive_during_requests) {
  class counting final : public event_sink {
   public:
    void deliver(event /*news*/) override { ++events_; }
    void broker_gone() override {}
    [[nodiscard]] int events() const { return events_; }

   private:
    std::atomic<int> events_{0};
  } sink;
  const auto client = connect();
  const auto other = connect();
  wire::subscribed present;
  const auto subscription = client->subscribe("", sink, present, deadline_after(20s));
  for (int i = 0; i < 50; ++i) {
    const std::string name = "n" + std::to_string(i);
    std::jthread requesting([&] {
      for (int k = 0; k < 20; ++k) {
        static_cast<void>(client->request(wire::list{}, {"list", {}}, deadline_after(20s)));
      }
    });
    publish_bound(*other, name);
    requesting.join();
    ASSERT_TRUE(eventually([&] { return sink.events() == i + 1; }, 20s)) << sink.events();
  }
  client->unsubscribe(subscription);
}

}  // namespace
}  // namespace gpushm::client_detail
