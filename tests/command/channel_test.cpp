// SPDX-License-Identifier: Apache-2.0
// `gpushm channel`, `demo --channel`, and what `ls`, `stat` and `doctor` say of timelines: real
// processes, in every order, with deaths.

#include "gpushm/channel.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/cli.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::killed_by;
using gpushm_testing::run_result;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds long_enough{30};

std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Bytes without a period that slots could have.
std::string contents(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 1;
  for (char& each : bytes) {
    state = state * 1'664'525 + 1'013'904'223;
    each = static_cast<char>(state >> 24U);
  }
  return bytes;
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) {
    names.insert(name);
  }
  return names;
}

/// The documents of --json, one on each line.
std::vector<json> documents_of(const std::string& out) {
  std::vector<json> documents;
  std::size_t at = 0;
  while (at < out.size()) {
    const std::size_t end = out.find('\n', at);
    documents.push_back(json::parse(out.substr(at, end - at)));
    at = end + 1;
  }
  return documents;
}

class channel_cli : public ::testing::Test {
 protected:
  [[nodiscard]] child sub(std::vector<std::string> more) const {
    more.insert(more.begin(), {"channel", "sub", "c", "--json"});
    return start(std::move(more));
  }
  [[nodiscard]] child pub(std::vector<std::string> more) const {
    more.insert(more.begin(), {"channel", "pub", "c", "--json"});
    more.insert(more.end(), {"--device", device_});
    return start(std::move(more));
  }
  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> arguments) const {
    auto options = cli_.command(std::move(arguments));
    options.env.insert(options.env.end(), environment_.begin(), environment_.end());
    return options;
  }
  [[nodiscard]] child start(std::vector<std::string> arguments) const {
    return child::start(command(std::move(arguments)));
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    return gpushm_testing::run_program(command(std::move(arguments)), seconds(60));
  }
  [[nodiscard]] child serve() const {
    auto broker = start({"serve", "--accept-fake-chunks", "--mode", "0666"});
    broker.wait_for_line("^gpushm: serving domain", long_enough);
    return broker;
  }
  /// The value of the next document, which must have this key.
  static json next(child& child, const std::string& key) {
    return json::parse(child.wait_for_line("^\\{\"" + key + "\"", long_enough)).at(key);
  }
  static void end(child& process, int status) {
    EXPECT_EQ(process.wait_exit(long_enough), exited(status)) << process.output().all_output();
  }
  [[nodiscard]] json channel() const {
    const auto result = run({"channel", "stat", "c", "--json"});
    return result.status == exited(0) ? json::parse(result.out).at("channel") : json();
  }
  /// Whether the channel gets into a state.
  template <typename Predicate>
  [[nodiscard]] bool becomes(Predicate&& is_met) const {
    return eventually(
        [&] {
          const json now = channel();
          return !now.is_null() && is_met(now);
        },
        long_enough);
  }
  static bool has_published(const json& channel, std::uint64_t items) {
    return channel.at("published").is_number() &&
           channel.at("published").get<std::uint64_t>() >= items;
  }
  [[nodiscard]] std::string write_file(const std::string& bytes) const {
    const std::string path = cli_.directory() / "in";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  cli cli_;
  std::string device_ = "host";
  std::vector<std::pair<std::string, std::string>> environment_;
};

// ---- usage ----

TEST_F(channel_cli, wrong_usage_exits_with_2) {
  const auto broker = serve();
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"nosuch"},
      {"create"},
      {"create", "c"},
      {"create", "c", "--slot-size", "0"},
      {"create", "c", "--slot-size", "1", "--slots", "0"},
      {"create", "c", "--slot-size", "1", "--slots", "1025"},
      {"create", std::string(201, 'c'), "--slot-size", "1"},
      {"pub"},
      {"pub", "c", "--rate", "0"},
      {"pub", "c", "--rate", "nan"},
      {"pub", "c", "--rate", "fast"},
      {"pub", "c", "--count", "0"},
      {"pub", "c", "--from", "x", "--pattern"},
      {"pub", "c", "--loop"},
      {"pub", "c", "--wait-for-consumers", "65"},
      {"pub", "c", "--timeout", "soon"},
      {"sub"},
      {"sub", "c", "--held", "2"},
      {"sub", "c", "--latest", "--share"},
      {"sub", "c", "--latest", "--held", "17"},
      {"sub", "c", "--count", "-1"},
      {"sub", "c", "--delay", "1"},
      {"stat"},
      {"stat", "a", "b"}};
  for (std::vector<std::string> arguments : wrong) {
    arguments.insert(arguments.begin(), "channel");
    const auto result = run(arguments);
    const auto text = ::testing::PrintToString(arguments) + "\n" + result.err;
    EXPECT_EQ(result.status, exited(2)) << text;
    EXPECT_THAT(result.err, ::testing::StartsWith("gpushm: ")) << text;
    EXPECT_EQ(result.out, "") << text;
  }
  EXPECT_EQ(json::parse(run({"ls", "--all", "--json"}).out).at("segments").size(), 0U);
}

TEST_F(channel_cli, help_lists_the_commands) {
  const auto result = run({"channel", "--help"});
  EXPECT_EQ(result.status, exited(0));
  for (const char* each : {"create", "pub", "sub", "stat"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string("  ") + each + " "));
    EXPECT_EQ(run({"channel", each, "--help"}).status, exited(0));
  }
}

TEST_F(channel_cli, what_does_not_exist_is_an_error) {
  const auto broker = serve();
  const auto stat = run({"channel", "stat", "c"});
  EXPECT_EQ(stat.status, exited(1));
  EXPECT_EQ(stat.err,
            "gpushm: stat \"c\": no such segment in domain default (`gpushm ls` lists segments)\n");
  const auto joined = run({"channel", "sub", "c", "--timeout", "10ms", "--connect-timeout", "30s"});
  EXPECT_EQ(joined.status, exited(1));
  EXPECT_EQ(joined.err,
            "gpushm: join channel \"c\": it has no producer after 10.0 ms (start one (gpushm "
            "channel pub), or give a longer --timeout)\n");
  const auto file = run({"channel", "pub", "c", "--from", cli_.directory() / "none"});
  EXPECT_EQ(file.status, exited(1));
  EXPECT_THAT(file.err, HasSubstr("/none\": open: No such file or directory"));
  EXPECT_EQ(
      run({"create", "c", "--size", "1", "--device", "host", "--lifetime", "persistent"}).status,
      exited(0));
  const auto other = run({"channel", "stat", "c"});
  EXPECT_EQ(other.status, exited(1));
  EXPECT_EQ(other.err,
            "gpushm: stat channel \"c\": this segment is not a channel (see gpushm stat)\n");
}

// ---- from one process to others ----

TEST_F(channel_cli, brings_each_item_to_each_consumer) {
  // The broker starts last but one, the producer last.
  std::vector<child> consumers;
  for (int i = 0; i != 2; ++i) {
    consumers.push_back(sub({}));
  }
  const auto broker = serve();
  auto producer =
      pub({"--slots", "3", "--slot-size", "10000", "--count", "500", "--wait-for-consumers", "2"});
  const json publishing = next(producer, "publishing");
  EXPECT_EQ(keys(publishing),
            (std::set<std::string>{"name", "slots", "slot_bytes", "device", "continuation"}));
  EXPECT_EQ(publishing.at("slots"), 3);
  EXPECT_EQ(publishing.at("slot_bytes"), 10'000);
  EXPECT_EQ(publishing.at("device").at("kind"), "host");
  EXPECT_EQ(publishing.at("continuation"), false);
  const json published = next(producer, "published");
  EXPECT_EQ(keys(published),
            (std::set<std::string>{"name",
                                   "items",
                                   "bytes",
                                   "first_item",
                                   "last_item",
                                   "seconds",
                                   "items_per_second",
                                   "bytes_per_second",
                                   "waited_seconds",
                                   "consumers",
                                   "dropped",
                                   "ended_by"}));
  EXPECT_EQ(published.at("items"), 500);
  EXPECT_EQ(published.at("bytes"), 5'000'000);
  EXPECT_EQ(published.at("first_item"), 1);
  EXPECT_EQ(published.at("last_item"), 500);
  EXPECT_EQ(published.at("dropped"), 0);
  EXPECT_EQ(published.at("ended_by"), "count");
  end(producer, 0);
  for (child& each : consumers) {
    const json joined = next(each, "joined");
    EXPECT_EQ(keys(joined), (std::set<std::string>{"name", "mode", "device"}));
    EXPECT_EQ(joined.at("mode"), "block");
    const json received = next(each, "received");
    EXPECT_EQ(keys(received),
              (std::set<std::string>{"name",
                                     "items",
                                     "bytes",
                                     "last_item",
                                     "skipped",
                                     "verified",
                                     "producers",
                                     "seconds",
                                     "items_per_second",
                                     "bytes_per_second",
                                     "latency_ns",
                                     "ended_by",
                                     "output"}));
    EXPECT_EQ(received.at("items"), 500);
    EXPECT_EQ(received.at("verified"), 500);
    EXPECT_EQ(received.at("skipped"), 0);
    EXPECT_EQ(received.at("last_item"), 500);
    EXPECT_EQ(received.at("producers"), 1);
    EXPECT_EQ(received.at("ended_by"), "producer");
    const json& latency = received.at("latency_ns");
    EXPECT_LE(latency.at("p50"), latency.at("p90"));
    EXPECT_LE(latency.at("p90"), latency.at("p99"));
    EXPECT_LE(latency.at("p99"), latency.at("max"));
    end(each, 0);
    // Nothing live: it is not a terminal.
    EXPECT_EQ(each.text(stream::err), "");
  }
  EXPECT_EQ(producer.text(stream::err), "");
}

TEST_F(channel_cli, a_created_channel_outlives_its_producers) {
  const auto broker = serve();
  const auto created = run({"channel",
                            "create",
                            "c",
                            "--slots",
                            "5",
                            "--slot-size",
                            "1000",
                            "--device",
                            "host",
                            "--json"});
  ASSERT_EQ(created.status, exited(0)) << created.err;
  const json made = json::parse(created.out).at("created");
  EXPECT_EQ(made.at("slots"), 5);
  EXPECT_EQ(made.at("slot_bytes"), 1'000);
  EXPECT_EQ(made.at("size_bytes"), 5 * 1'024);
  EXPECT_EQ(made.at("lifetime"), "persistent");
  const auto text = run({"channel", "stat", "c"});
  EXPECT_EQ(text.out, "c\n  slots     5 of 1000 B\n  device    host\n  producer  none\n");
  for (int i = 0; i != 2; ++i) {
    auto producer = pub({"--count", "7"});  // with the channel's slots
    const json publishing = next(producer, "publishing");
    EXPECT_EQ(publishing.at("slots"), 5);
    EXPECT_EQ(publishing.at("slot_bytes"), 1'000);
    EXPECT_EQ(next(producer, "published").at("bytes"), 7'000);
    end(producer, 0);
  }
  const auto other = run({"channel", "pub", "c", "--slots", "4", "--count", "1"});
  EXPECT_EQ(other.status, exited(1));
  EXPECT_EQ(other.err,
            "gpushm: publish on \"c\": the channel has 5 of 1000 B, not 4 of 1000 B (leave "
            "out --slots and --slot-size, or remove the channel first: gpushm rm)\n");
  EXPECT_EQ(run({"channel", "create", "c", "--slot-size", "1"}).status, exited(1));
}

TEST_F(channel_cli, a_second_producer_is_refused) {
  const auto broker = serve();
  auto producer = pub({"--slot-size", "64", "--rate", "100"});
  next(producer, "publishing");
  const auto second = run({"channel", "pub", "c", "--count", "1"});
  EXPECT_EQ(second.status, exited(1));
  EXPECT_EQ(second.err,
            "gpushm: publish on \"c\": the channel has a producer (stop that one first: gpushm "
            "channel stat shows its process)\n");
  EXPECT_TRUE(producer.running());
  producer.kill(SIGINT);
  EXPECT_EQ(next(producer, "published").at("ended_by"), "signal");
  end(producer, 0);
}

TEST_F(channel_cli, a_file_arrives_as_it_was) {
  const auto broker = serve();
  const std::string bytes = contents(100'001);
  const std::string out = cli_.directory() / "out";
  auto consumer = sub({"--out", out});
  auto producer =
      pub({"--slot-size", "4096", "--from", write_file(bytes), "--wait-for-consumers", "1"});
  const json published = next(producer, "published");
  EXPECT_EQ(published.at("items"), 25);
  EXPECT_EQ(published.at("bytes"), bytes.size());
  EXPECT_EQ(published.at("ended_by"), "file");
  const json received = next(consumer, "received");
  EXPECT_EQ(received.at("verified"), 25);
  EXPECT_EQ(received.at("output"), out);
  end(producer, 0);
  end(consumer, 0);
  EXPECT_TRUE(whole_file(out) == bytes);
}

TEST_F(channel_cli, a_file_is_repeated) {
  const auto broker = serve();
  const std::string bytes = contents(5'000);
  const std::string out = cli_.directory() / "out";
  auto consumer = sub({"--out", out});
  auto producer = pub({"--slot-size",
                       "4096",
                       "--from",
                       write_file(bytes),
                       "--loop",
                       "--count",
                       "5",
                       "--wait-for-consumers",
                       "1"});
  end(producer, 0);
  end(consumer, 0);
  EXPECT_TRUE(whole_file(out) == bytes + bytes + bytes.substr(0, 4'096));
}

TEST_F(channel_cli, standard_input_arrives_as_it_was) {
  const auto broker = serve();
  const std::string bytes = contents(10'001);
  const std::string out = cli_.directory() / "out";
  auto consumer = sub({"--out", out});
  auto producer = pub({"--slot-size", "4096", "--from", "-", "--wait-for-consumers", "1"});
  producer.write(bytes.substr(0, 3'000));
  producer.write(bytes.substr(3'000));
  producer.close_stdin();
  EXPECT_EQ(next(producer, "published").at("items"), 3);
  end(producer, 0);
  end(consumer, 0);
  EXPECT_TRUE(whole_file(out) == bytes);
}

TEST_F(channel_cli, the_newest_item_skips_others) {
  const auto broker = serve();
  auto producer = pub({"--slot-size", "64", "--rate", "2000", "--wait-for-consumers", "2"});
  next(producer, "publishing");
  auto consumer = sub({"--latest", "--held", "2", "--count", "2"});
  next(consumer, "joined");
  consumer.kill(SIGSTOP);
  const auto other = sub({});  // now the producer begins
  ASSERT_TRUE(becomes([&](const json& channel) { return has_published(channel, 50); }));
  consumer.kill(SIGCONT);
  const json received = next(consumer, "received");
  EXPECT_EQ(received.at("items"), 2);
  EXPECT_EQ(received.at("verified"), 2);
  EXPECT_GE(received.at("skipped"), 49);
  EXPECT_EQ(received.at("ended_by"), "count");
  end(consumer, 0);
  EXPECT_TRUE(producer.running());
}

TEST_F(channel_cli, items_are_shared) {
  const auto broker = serve();
  std::vector<child> consumers;
  for (int i = 0; i != 2; ++i) {
    consumers.push_back(sub({"--share"}));
  }
  auto producer = pub({"--slot-size", "64", "--count", "200", "--wait-for-consumers", "2"});
  end(producer, 0);
  std::uint64_t items = 0;
  for (child& each : consumers) {
    EXPECT_EQ(next(each, "joined").at("mode"), "share");
    const json received = next(each, "received");
    EXPECT_EQ(received.at("verified"), received.at("items"));
    items += received.at("items").get<std::uint64_t>();
    end(each, 0);
  }
  EXPECT_EQ(items, 200U);
}

TEST_F(channel_cli, what_a_dead_consumer_had_is_for_another_one) {
  const auto broker = serve();
  auto dies = sub({"--share", "--held", "2", "--delay", "1h"});  // with most room: has the first
  auto stays = sub({"--share", "--held", "1"});
  auto producer = pub({"--slot-size", "64", "--rate", "500", "--wait-for-consumers", "2"});
  ASSERT_TRUE(becomes([&](const json& channel) {
    const auto& listing = channel.at("consumers");
    return std::any_of(listing.begin(), listing.end(), [&](const json& each) {
      return each.at("pid") == dies.pid() && each.at("mode") == "share" &&
             each.at("may_hold") == 2 && each.at("holds") >= 1 && each.at("lag") >= 1;
    });
  }));
  dies.kill(SIGKILL);
  ASSERT_TRUE(becomes([](const json& channel) { return channel.at("consumers").size() == 1; }));
  const auto now = channel().at("published").get<std::uint64_t>();
  ASSERT_TRUE(becomes([&](const json& channel) { return has_published(channel, now + 20); }));
  producer.kill(SIGINT);
  const json published = next(producer, "published");
  end(producer, 0);
  EXPECT_EQ(next(stays, "received").at("items"), published.at("items"));
  end(stays, 0);
}

TEST_F(channel_cli, items_of_another_program_are_not_verified) {
  const auto broker = serve();
  const auto client = gpushm::client::connect({.socket_path = cli_.socket()});
  auto producer = gpushm::channel_producer::create(
      client, "c", {.slot_bytes = 64, .slots = 2, .device = "host"});
  const std::string out = cli_.directory() / "out";
  auto consumer = sub({"--out", out});
  next(consumer, "joined");
  for (const char each : {'a', 'b'}) {
    auto slot = producer.acquire(long_enough);
    ASSERT_TRUE(slot);
    std::fill_n(static_cast<char*>(slot->data()), 64, each);
    slot->publish();
  }
  producer.reset();
  const json received = next(consumer, "received");
  EXPECT_EQ(received.at("items"), 2);
  EXPECT_EQ(received.at("verified"), 0);
  EXPECT_EQ(received.at("bytes"), 128);
  EXPECT_TRUE(received.at("latency_ns").is_null());
  end(consumer, 0);
  EXPECT_EQ(whole_file(out), std::string(64, 'a') + std::string(64, 'b'));
}

// ---- damage and deaths ----

TEST_F(channel_cli, a_damaged_item_is_detected) {
  const auto broker = serve();
  const std::string out = cli_.directory() / "out";
  for (const bool file : {false, true}) {
    auto consumer = sub({"--out", out});
    std::vector<std::string> more{
        "--slot-size", "4096", "--count", "5", "--corrupt", "3", "--wait-for-consumers", "1"};
    if (file) {
      more.insert(more.end(), {"--from", write_file(contents(20'480))});
    }
    auto producer = pub(more);
    end(consumer, 1);
    const auto documents = documents_of(consumer.text(stream::out));
    ASSERT_EQ(documents.size(), 3U);
    EXPECT_EQ(documents[1].at("received").at("verified"), 2);
    EXPECT_EQ(documents[1].at("received").at("ended_by"), "error");
    EXPECT_EQ(documents[2].at("error").at("code"), "protocol_error");
    EXPECT_THAT(documents[2].at("error").at("cause").get<std::string>(),
                HasSubstr(file ? "the 4096 bytes of item 3 have the checksum "
                               : "1 of 4096 bytes of item 3 are wrong, the first at 2048"));
    EXPECT_EQ(::access(out.c_str(), F_OK), -1) << "it is not complete";
    end(producer, 0);
  }
}

TEST_F(channel_cli, death_of_the_producer_is_reported) {
  const auto broker = serve();
  auto consumer = sub({});
  auto producer = pub({"--slot-size", "64", "--rate", "1000", "--wait-for-consumers", "1"});
  ASSERT_TRUE(becomes([](const json& channel) { return has_published(channel, 20); }));
  producer.kill(SIGKILL);
  EXPECT_EQ(producer.wait_exit(long_enough), killed_by(SIGKILL));
  end(consumer, 1);
  const auto documents = documents_of(consumer.text(stream::out));
  ASSERT_EQ(documents.size(), 3U);
  const json& received = documents[1].at("received");
  EXPECT_GE(received.at("items"), 20);
  EXPECT_EQ(received.at("verified"), received.at("items"));
  EXPECT_EQ(received.at("ended_by"), "death");
  EXPECT_EQ(documents[2].at("error").at("code"), "peer_died");
  EXPECT_EQ(consumer.text(stream::err),
            "gpushm: read channel \"c\": the producer has died, and all its complete items were "
            "read (call again when there is a new producer, or open the consumer with more time to "
            "resume)\n");
}

TEST_F(channel_cli, another_producer_continues) {
  const auto broker = serve();
  auto consumer = sub({"--resume", "60s"});
  auto first = pub({"--slot-size", "64", "--rate", "1000", "--wait-for-consumers", "1"});
  ASSERT_TRUE(becomes([](const json& channel) { return has_published(channel, 20); }));
  first.kill(SIGKILL);
  EXPECT_EQ(first.wait_exit(long_enough), killed_by(SIGKILL));
  ASSERT_TRUE(
      becomes([](const json& channel) { return channel.at("producer").at("state") == "died"; }));
  const auto names = [&] { return run({"ls", "--all", "--names"}).out; };
  ASSERT_TRUE(
      eventually([&] { return names().find("~producer") == std::string::npos; }, long_enough));
  auto second = pub({"--count", "30", "--wait-for-consumers", "1"});
  EXPECT_EQ(next(second, "publishing").at("continuation"), true);
  end(second, 0);
  const json received = next(consumer, "received");
  EXPECT_EQ(received.at("producers"), 2);
  EXPECT_GE(received.at("items"), 50);
  EXPECT_EQ(received.at("verified"), received.at("items"));
  EXPECT_EQ(received.at("ended_by"), "producer");
  end(consumer, 0);
}

TEST_F(channel_cli, death_of_a_consumer_frees_the_producer) {
  const auto broker = serve();
  auto consumer = sub({"--delay", "1h"});
  auto producer = pub({"--slot-size", "64", "--count", "100", "--wait-for-consumers", "1"});
  ASSERT_TRUE(becomes([](const json& channel) {
    return channel.at("consumers").size() == 1 && channel.at("consumers")[0].at("holds") == 1 &&
           channel.at("published") == 4;
  }));
  EXPECT_TRUE(producer.running()) << "all slots are in use";
  consumer.kill(SIGKILL);
  EXPECT_EQ(consumer.wait_exit(long_enough), killed_by(SIGKILL));
  const json published = next(producer, "published");
  EXPECT_EQ(published.at("items"), 100);
  EXPECT_EQ(published.at("consumers"), 0);
  end(producer, 0);
}

TEST_F(channel_cli, a_signal_ends_each_wait_with_a_summary) {
  const auto broker = serve();
  auto waiting = pub({"--slot-size", "64", "--wait-for-consumers", "9", "--timeout", "1h"});
  next(waiting, "publishing");
  auto consumer = sub({});
  next(consumer, "joined");
  consumer.kill(SIGINT);
  const json received = next(consumer, "received");
  EXPECT_EQ(received.at("items"), 0);
  EXPECT_TRUE(received.at("last_item").is_null());
  EXPECT_EQ(received.at("ended_by"), "signal");
  end(consumer, 0);
  waiting.kill(SIGTERM);
  EXPECT_EQ(next(waiting, "published").at("ended_by"), "signal");
  end(waiting, 0);
  auto reading = pub({"--slot-size", "64", "--from", "-"});
  next(reading, "publishing");
  reading.kill(SIGINT);
  EXPECT_EQ(next(reading, "published").at("ended_by"), "signal");
  end(reading, 0);
  auto delayed = sub({"--delay", "1h"});
  auto blocked = pub({"--slot-size", "64", "--wait-for-consumers", "1"});
  ASSERT_TRUE(becomes([](const json& channel) { return channel.at("published") == 4; }));
  blocked.kill(SIGINT);
  EXPECT_EQ(next(blocked, "published").at("items"), 4);
  end(blocked, 0);
  delayed.kill(SIGINT);
  EXPECT_EQ(next(delayed, "received").at("verified"), 1);
  end(delayed, 0);
}

TEST_F(channel_cli, too_few_consumers_are_an_error) {
  const auto broker = serve();
  const auto result = run({"channel",
                           "pub",
                           "c",
                           "--device",
                           "host",
                           "--wait-for-consumers",
                           "2",
                           "--timeout",
                           "20ms"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.err,
            "gpushm: wait for consumers of \"c\": 0 of 2 have joined within 20.0 ms (start more of "
            "them (gpushm channel sub), or give a longer --timeout)\n");
}

// ---- stat and ls ----

TEST_F(channel_cli, stat_shows_the_members) {
  const auto broker = serve();
  auto each = sub({"--delay", "1h"});
  auto newest = sub({"--latest", "--held", "2", "--delay", "1h"});
  auto producer = pub({"--slots", "6", "--slot-size", "64", "--wait-for-consumers", "2"});
  ASSERT_TRUE(becomes([](const json& channel) { return channel.at("published") == 6; }));
  const json now = channel();
  EXPECT_EQ(keys(now),
            (std::set<std::string>{"name",
                                   "slots",
                                   "slot_bytes",
                                   "device",
                                   "producer",
                                   "announced",
                                   "published",
                                   "consumers"}));
  EXPECT_EQ(now.at("slots"), 6);
  EXPECT_EQ(now.at("announced"), 6);
  EXPECT_EQ(now.at("producer").at("pid"), producer.pid());
  EXPECT_EQ(now.at("producer").at("uid"), ::geteuid());
  EXPECT_EQ(now.at("producer").at("state"), "live");
  ASSERT_EQ(now.at("consumers").size(), 2U);
  for (const json& one : now.at("consumers")) {
    EXPECT_EQ(one.at("admitted"), true);
    EXPECT_EQ(one.at("start"), 1);
    EXPECT_EQ(one.at("holds"), 1);
    if (one.at("mode") == "latest") {
      EXPECT_EQ(one.at("pid"), newest.pid());
      EXPECT_EQ(one.at("may_hold"), 2);
    } else {
      EXPECT_EQ(one.at("pid"), each.pid());
      EXPECT_EQ(one.at("mode"), "block");
      EXPECT_EQ(one.at("taken"), 1);
      EXPECT_EQ(one.at("lag"), 6);
      EXPECT_TRUE(one.at("may_hold").is_null());
    }
  }
  const auto text = run({"channel", "stat", "c"}).out;
  EXPECT_THAT(text, HasSubstr("  slots      6 of 64 B\n"));
  EXPECT_THAT(text, HasSubstr("  consumers  2\n"));
  EXPECT_THAT(text, HasSubstr("CONSUMER"));
  const auto hidden = run({"ls", "--names"});
  EXPECT_EQ(hidden.out, "c\n");
  const auto listing = run({"ls", "--names", "--all"});
  EXPECT_THAT(listing.out, HasSubstr("c/~producer\n"));
  EXPECT_THAT(listing.out, HasSubstr("c/~page-"));
  EXPECT_THAT(listing.out, HasSubstr("c/~consumer-"));
  EXPECT_THAT(listing.out, HasSubstr("~signals-"));
  EXPECT_EQ(json::parse(run({"ls", "--json"}).out).at("segments").size(), 1U);
  EXPECT_EQ(run({"ls", "--names", "c/~prod"}).out, "c/~producer\n");
  EXPECT_THAT(run({"stat", "c/~producer"}).out,
              HasSubstr("  internal       the producer's words of the channel \"c\"\n"));
}

TEST_F(channel_cli, stat_of_a_timeline_shows_who_may_write_it) {
  const auto broker = serve();
  auto client = gpushm::client::connect({.socket_path = cli_.socket()});
  auto timeline = gpushm::timeline::create(client, "t");
  timeline.signal(7);
  const auto as = [&](uid_t uid) {
    auto options = command({"stat", "t", "--json"});
    options.uid = uid;
    options.gid = uid;
    const auto result = gpushm_testing::run_program(options, long_enough);
    EXPECT_EQ(result.status, exited(0)) << result.err;
    return json::parse(result.out).at("timeline");
  };
  const json own = as(static_cast<uid_t>(-1));  // of the broker's uid
  EXPECT_EQ(own, json({{"value", 7}, {"ended", false}, {"writer", "advisory"}}));
  EXPECT_THAT(run({"stat", "t"}).out,
              HasSubstr("  value          7\n"
                        "  writer         advisory (peer is root, or has the broker's uid)\n"));
  EXPECT_EQ(run({"ls", "--names"}).out, "t\n");
  if (::geteuid() == 0) {
    constexpr uid_t other = 64'110;
    EXPECT_EQ(as(other), json({{"value", 7}, {"ended", false}, {"writer", "enforced"}}));
  }
  EXPECT_TRUE(json::parse(run({"create",
                               "s",
                               "--size",
                               "1",
                               "--device",
                               "host",
                               "--lifetime",
                               "persistent",
                               "--json"})
                              .out)
                  .contains("created"));
  EXPECT_TRUE(json::parse(run({"stat", "s", "--json"}).out).at("timeline").is_null());
}

// ---- GPU memory, and the demo ----

class channel_cli_on_gpu : public channel_cli {
 protected:
  channel_cli_on_gpu() {
    environment_ = gpus_.environment();
    device_ = "0";
  }
  gpushm::fake::fake_gpus gpus_;
};

TEST_F(channel_cli_on_gpu, items_are_copied_and_checked) {
  const auto broker = serve();
  ASSERT_EQ(run({"channel", "create", "c", "--slot-size", "100000"}).status, exited(0));
  const std::string bytes = contents(300'001);
  const std::string out = cli_.directory() / "out";
  auto newest = sub({"--latest"});
  auto each = sub({"--out", out});
  auto producer = pub({"--from", write_file(bytes), "--wait-for-consumers", "2"});
  EXPECT_EQ(next(producer, "publishing").at("device").at("kind"), "gpu");
  end(producer, 0);
  end(newest, 0);
  EXPECT_EQ(next(each, "received").at("verified"), 4);
  end(each, 0);
  EXPECT_TRUE(whole_file(out) == bytes);
  auto late = sub({"--timeout", "10ms", "--connect-timeout", "30s"});
  end(late, 1);  // the producer has ended
  EXPECT_EQ(channel().at("device").at("kind"), "gpu");
}

TEST_F(channel_cli_on_gpu, a_damaged_item_is_detected) {
  const auto broker = serve();
  auto consumer = sub({});
  auto producer =
      pub({"--slot-size", "4096", "--count", "2", "--corrupt", "2", "--wait-for-consumers", "1"});
  end(consumer, 1);
  EXPECT_THAT(consumer.text(stream::err), HasSubstr("1 of 4096 bytes of item 2 are wrong"));
}

TEST_F(channel_cli_on_gpu, demo_passes) {
  const auto result = run({"demo", "--channel", "--device", "0", "--size", "64KiB", "--json"});
  EXPECT_EQ(result.status, exited(0)) << result.out << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("result"), "PASS");
  EXPECT_EQ(document.at("device"), gpus_.gpus()[0].uuid);
}

TEST_F(channel_cli, demo_passes) {
  const auto result = run({"demo", "--channel", "--device", "host"});
  EXPECT_EQ(result.status, exited(0)) << result.out << result.err;
  EXPECT_TRUE(result.out.ends_with("\nPASS\n")) << result.out;
  const auto json_result = run({"demo", "--channel", "--device", "host", "--json"});
  const json document = json::parse(json_result.out);
  EXPECT_EQ(keys(document),
            (std::set<std::string>{"result",
                                   "device",
                                   "device_name",
                                   "device_remark",
                                   "slots",
                                   "slot_bytes",
                                   "consumers",
                                   "steps",
                                   "error"}));
  EXPECT_EQ(document.at("consumers").size(), 3U) << json_result.out << json_result.err;
  EXPECT_EQ(run({"ls"}).status, exited(1)) << "no broker of the demo is left";
}

TEST_F(channel_cli, demo_detects_damage) {
  const auto result = run({"demo", "--channel", "--device", "host", "--corrupt", "fill"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_TRUE(result.out.ends_with("\nFAIL\n")) << result.out;
  EXPECT_EQ(run({"demo", "--channel", "--isolated"}).status, exited(2));
}

}  // namespace
}  // namespace gpushm_tests
