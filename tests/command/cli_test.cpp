// SPDX-License-Identifier: Apache-2.0
// The commands that create, open, list, await and remove segments, with valid and invalid input.

#include "tests/support/broker_process/cli.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/files/page_size.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) {
    names.insert(name);
  }
  return names;
}

/// Parses output that must be one JSON document on one line.
json document_of(const run_result& result) {
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  return json::parse(result.out);
}

class cli_test : public ::testing::Test {
 protected:
  void create(const std::string& name, const std::string& size, const std::string& fill = "7") {
    const auto created = cli_.run({"create",
                                   name,
                                   "--size",
                                   size,
                                   "--fill",
                                   fill,
                                   "--device",
                                   "host",
                                   "--lifetime",
                                   "persistent"});
    ASSERT_EQ(created.status, exited(0)) << created.err;
  }
  [[nodiscard]] std::size_t listed() const {
    return document_of(cli_.run({"ls", "--json"})).at("segments").size();
  }

  cli cli_;
};

// ---- usage errors ----

TEST_F(cli_test, usage_error_exits_with_2_and_prints_nothing) {
  const std::vector<std::vector<std::string>> wrong{
      {"nosuch"},
      {"create"},
      {"create", "a"},
      {"create", "a", "--size", "1", "--from", "/dev/null"},
      {"create", "a", "--size", "1", "--fill", "256", "--hold"},
      {"create", "a", "--size", "1", "--fill", "x", "--hold"},
      {"create", "a", "--size", "1", "--lifetime", "eternal"},
      {"create", "a", "--size", "1", "--hold", "--until-released"},
      {"create", "a", "--size", "1", "--device", "host"},  // leased, but not held
      {"open"},
      {"open", "a", "--timeout", "soon"},
      {"open", "a", "--access", "w"},
      {"open", "a", "b"},
      {"stat"},
      {"rm"},
      {"release"},
      {"release", "a"},
      {"release", "--unfenced"},
      {"wait"},
      {"serve", "--mode", "999"},
      {"serve", "--mode", "07777"},
      {"serve", "--domain", "../x"},
      {"ls", "--nosuch"}};
  const auto broker = cli_.serve();
  for (const auto& arguments : wrong) {
    const auto result = cli_.run(arguments);
    const auto text = ::testing::PrintToString(arguments) + "\n" + result.err;
    EXPECT_EQ(result.status, exited(2)) << text;
    EXPECT_THAT(result.err, ::testing::StartsWith("gpushm: ")) << text;
    EXPECT_EQ(result.out, "") << text;
  }
  EXPECT_EQ(listed(), 0U);
}

TEST_F(cli_test, invalid_size_is_refused_with_option_name) {
  const auto broker = cli_.serve();
  for (const char* size :
       {"", "12q", "-1", "1.5.5GiB", "GiB", "0x10", "1 2", "1.3B", "18446744073709551616", "1e9"}) {
    const auto result = cli_.run({"create",
                                  "a",
                                  "--device",
                                  "host",
                                  "--lifetime",
                                  "persistent",
                                  std::string("--size=") + size});
    EXPECT_EQ(result.status, exited(2)) << size;
    EXPECT_THAT(result.err, HasSubstr("--size")) << size;
  }
  for (const auto& [size, bytes] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"4096", 4096},
                                                          {"64KiB", 65'536},
                                                          {"1.5MiB", 1'572'864},
                                                          {"1MB", 1'000'000},
                                                          {"3", 3}}) {
    create("size/" + size, size);
    const auto stat = document_of(cli_.run({"stat", "size/" + size, "--json"}));
    EXPECT_EQ(stat.at("segment").at("size_bytes"), bytes);
  }
}

TEST_F(cli_test, help_and_version_succeed) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--help"}, {"create", "--help"}, {"serve", "--help"}, {"--version"}, {"version"}}) {
    const auto result = cli_.run(arguments);
    EXPECT_EQ(result.status, exited(0)) << result.err;
    EXPECT_THAT(result.out, HasSubstr("gpushm"));
  }
  EXPECT_TRUE(document_of(cli_.run({"version", "--json"})).is_object());
}

// ---- errors ----

TEST_F(cli_test, error_has_code_cause_and_next_step) {
  const auto no_broker = cli_.run({"ls", "--json"});
  EXPECT_EQ(no_broker.status, exited(1));
  EXPECT_EQ(document_of(no_broker).at("error").at("code"), "broker_unreachable");

  const auto broker = cli_.serve({"--quota", "1MiB"});
  create("models/llama", "4096");
  const std::vector<std::string> persistent{"--device", "host", "--lifetime", "persistent"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> failing{
      {"no_such_segment", {"open", "models/lama"}},
      {"no_such_segment", {"stat", "nothing"}},
      {"size_mismatch", {"open", "models/llama", "--expect-size", "4095"}},
      {"already_exists", {"create", "models/llama", "--size", "1"}},
      {"invalid_argument", {"create", "", "--size", "1"}},
      {"invalid_argument", {"create", std::string(256, 'n'), "--size", "1"}},
      {"invalid_argument", {"create", "\xff", "--size", "1"}},
      {"invalid_argument", {"create", "zero", "--size", "0"}},
      {"quota_exceeded", {"create", "large", "--size", "2MiB"}},
      {"timed_out", {"wait", "never", "--timeout", "10ms"}}};
  for (const auto& [code, arguments] : failing) {
    auto command = arguments;
    command.emplace_back("--json");
    if (command.front() == "create") {
      command.insert(command.end(), persistent.begin(), persistent.end());
    }
    const auto result = cli_.run(command);
    EXPECT_EQ(result.status, exited(1)) << code << "\n" << result.err;
    const auto error = document_of(result).at("error");
    EXPECT_EQ(keys(error), (std::set<std::string>{"code", "message", "cause", "next_step"}));
    EXPECT_EQ(error.at("code"), code) << error;
    EXPECT_NE(error.at("cause"), "") << error;
    EXPECT_NE(error.at("next_step"), "") << error;
    EXPECT_THAT(result.err, HasSubstr("gpushm: "));
  }
  EXPECT_EQ(listed(), 1U);
}

TEST_F(cli_test, misspelt_name_gets_near_match) {
  const auto broker = cli_.serve();
  create("models/llama", "4096");
  create("other", "4096");
  for (const char* command : {"open", "stat"}) {
    EXPECT_EQ(cli_.run({command, "models/lama"}).err,
              std::string("gpushm: ") + command +
                  " \"models/lama\": no such segment in domain default (did you mean "
                  "\"models/llama\"?)\n");
    const auto error = document_of(cli_.run({command, "models/lama", "--json"})).at("error");
    EXPECT_EQ(error.at("code"), "no_such_segment");
    EXPECT_EQ(error.at("next_step"), "did you mean \"models/llama\"?");
  }
  const auto removed = cli_.run({"rm", "models/lama", "othr", "nothing/like/it"});
  EXPECT_EQ(removed.status, exited(1));
  EXPECT_THAT(removed.err, HasSubstr("did you mean \"models/llama\"?"));
  EXPECT_THAT(removed.err, HasSubstr("did you mean \"other\"?"));
  EXPECT_THAT(removed.err,
              HasSubstr("gpushm: remove \"nothing/like/it\": no such segment in domain default ("));
  EXPECT_EQ(listed(), 2U);
}

TEST_F(cli_test, import_of_special_file_is_refused) {
  for (const std::string& path : {std::string("/dev/null"), cli_.directory().path()}) {
    const auto result = cli_.run({"import", "--file", path, "--timeout", "60s", "--json"});
    EXPECT_EQ(result.status, exited(1));
    EXPECT_EQ(document_of(result).at("error").at("code"), "invalid_argument");
    EXPECT_EQ(result.err,
              "gpushm: import \"" + path +
                  "\": it is not a regular file, so no export created it (give the path that "
                  "gpushm export --file was given)\n");
  }
}

TEST_F(cli_test, rm_removes_existing_and_reports_missing) {
  const auto broker = cli_.serve();
  create("one", "4096");
  create("two", "4096");
  const auto result = cli_.run({"rm", "one", "missing", "two", "--json"});
  EXPECT_EQ(result.status, exited(1));
  const auto document = document_of(result);
  EXPECT_EQ(document.at("removed"), (json{"one", "two"}));
  EXPECT_EQ(document.at("failed").size(), 1U);
  EXPECT_EQ(listed(), 0U);
}

TEST_F(cli_test, pending_fence_is_shown_and_can_be_released) {
  const auto broker = cli_.serve();
  create("one", "4096");
  const auto refused = cli_.run({"release", "--unfenced", "one", "missing", "--json"});
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(document_of(refused).at("released"), json::array());
  EXPECT_EQ(document_of(refused).at("failed").at(0).at("error").at("code"), "invalid_argument");
  EXPECT_EQ(document_of(refused).at("failed").at(1).at("error").at("code"), "no_such_segment");

  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("fence_writer"), cli_.socket(), "kv", "killed", "0"};
  auto writer = child::start(options);
  writer.wait_for_line("^ready$", seconds(20));
  EXPECT_EQ(document_of(cli_.run({"stat", "kv", "--json"})).at("segment").at("ending"), nullptr);
  writer.write("go\n");
  const auto ending = [&] {
    return document_of(cli_.run({"stat", "kv", "--json"})).at("segment").at("ending");
  };
  ASSERT_TRUE(eventually([&] { return ending() != nullptr; }, seconds(20)));
  const auto shown = ending();
  EXPECT_EQ(shown.at("leases"), 1);
  EXPECT_EQ(shown.at("pid"), writer.pid());
  EXPECT_EQ(shown.at("waits_for"), "process");
  EXPECT_THAT(cli_.run({"stat", "kv"}).out,
              ::testing::ContainsRegex(
                  "ending +1 lease of pid [0-9]+, disconnected without a goodbye [0-9]+ "
                  "ms ago; waiting for the end of the process\n"));
  EXPECT_THAT(cli_.run({"ls"}).out, ::testing::HasSubstr(" ending "));
  const auto released = cli_.run({"release", "--unfenced", "kv"});
  EXPECT_EQ(released.status, exited(0)) << released.err;
  EXPECT_EQ(released.out, "released \"kv\"\n");
  EXPECT_EQ(listed(), 1U);
}

// ---- contents ----

TEST_F(cli_test, file_contents_are_preserved) {
  const auto broker = cli_.serve();
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same file in every run
  std::string contents(1'000'003, '\0');
  std::generate(contents.begin(), contents.end(), [&] { return static_cast<char>(random()); });
  const auto& directory = cli_.directory();
  std::ofstream(directory / "in", std::ios::binary) << contents;
  const auto created = cli_.run({"create",
                                 "file",
                                 "--from",
                                 directory / "in",
                                 "--device",
                                 "host",
                                 "--lifetime",
                                 "persistent",
                                 "--json"});
  ASSERT_EQ(created.status, exited(0)) << created.err;
  EXPECT_EQ(document_of(created).at("created").at("size_bytes"), contents.size());

  // A longer file exists: afterwards it must contain exactly the segment's bytes.
  std::ofstream(directory / "out", std::ios::binary) << std::string(2'000'000, 'x');
  const auto opened =
      cli_.run({"open", "file", "--out", directory / "out", "--checksum", "--json"});
  ASSERT_EQ(opened.status, exited(0)) << opened.err;
  EXPECT_TRUE(whole_file(directory / "out") == contents);
  EXPECT_EQ(document_of(opened).at("opened").at("crc32c"), crc32c_text(contents));
}

TEST_F(cli_test, inaccessible_file_is_reported_and_leaves_nothing) {
  const auto broker = cli_.serve();
  create("small", "4096");
  const auto read = cli_.run({"create",
                              "x",
                              "--from",
                              "/nonexistent/file",
                              "--device",
                              "host",
                              "--lifetime",
                              "persistent"});
  EXPECT_EQ(read.status, exited(1));
  EXPECT_THAT(read.err, HasSubstr("/nonexistent/file"));
  const auto written = cli_.run({"open", "small", "--out", "/nonexistent/file"});
  EXPECT_EQ(written.status, exited(1));
  EXPECT_THAT(written.err, HasSubstr("/nonexistent/file"));
  std::ofstream(cli_.directory() / "empty").flush();
  EXPECT_NE(cli_.run({"create",
                      "x",
                      "--from",
                      cli_.directory() / "empty",
                      "--device",
                      "host",
                      "--lifetime",
                      "persistent"})
                .status,
            exited(0));
  EXPECT_EQ(listed(), 1U);
}

TEST_F(cli_test, fill_byte_is_read_back) {
  const auto broker = cli_.serve();
  create("decimal", "1000", "42");
  create("hexadecimal", "1000", "0xff");
  const auto sum = [&](const std::string& name) {
    return document_of(cli_.run({"open", name, "--checksum", "--json"})).at("opened").at("crc32c");
  };
  EXPECT_EQ(sum("decimal"), crc32c_text(std::string(1000, 42)));
  EXPECT_EQ(sum("hexadecimal"), crc32c_text(std::string(1000, '\xff')));
}

// ---- start order and lifetime ----

TEST_F(cli_test, consumer_may_start_before_broker_and_producer) {
  auto consumer = cli_.start(
      {"open", "late", "--timeout", "60s", "--connect-timeout", "60s", "--checksum", "--json"});
  auto waiter = cli_.start({"wait", "late", "--timeout", "60s", "--connect-timeout", "60s"});
  const auto broker = cli_.serve();
  EXPECT_TRUE(consumer.running());
  create("late", "64KiB", "9");
  EXPECT_EQ(consumer.wait_exit(seconds(30)), exited(0)) << consumer.output().all_output();
  EXPECT_EQ(waiter.wait_exit(seconds(30)), exited(0)) << waiter.output().all_output();
  const auto opened = json::parse(consumer.text(stream::out)).at("opened");
  EXPECT_EQ(opened.at("crc32c"), crc32c_text(std::string(65'536, 9)));
}

TEST_F(cli_test, held_segment_is_freed_with_its_holder) {
  const auto broker = cli_.serve();
  auto holder = cli_.start({"create", "held", "--size", "4096", "--device", "host", "--hold"});
  holder.wait_for_line("^created \"held\"", seconds(20));
  EXPECT_EQ(cli_.run({"open", "held"}).status, exited(0));
  holder.kill(SIGTERM);
  EXPECT_EQ(holder.wait_exit(seconds(20)), exited(0)) << holder.output().all_output();
  EXPECT_TRUE(eventually([&] { return listed() == 0; }, seconds(20)));
}

TEST_F(cli_test, until_released_ends_with_the_last_consumer) {
  const auto broker = cli_.serve();
  auto producer =
      cli_.start({"create", "once", "--size", "4096", "--device", "host", "--until-released"});
  producer.wait_for_line("^created \"once\"", seconds(20));
  auto consumer = cli_.start({"open", "once", "--hold"});
  consumer.wait_for_line("^opened \"once\"", seconds(20));
  EXPECT_TRUE(producer.running());
  consumer.kill(SIGINT);
  EXPECT_EQ(consumer.wait_exit(seconds(20)), exited(0)) << consumer.output().all_output();
  EXPECT_EQ(producer.wait_exit(seconds(20)), exited(0)) << producer.output().all_output();
  EXPECT_EQ(listed(), 0U);
}

TEST_F(cli_test, until_released_times_out) {
  const auto broker = cli_.serve();
  const auto result = cli_.run({"create",
                                "once",
                                "--size",
                                "4096",
                                "--device",
                                "host",
                                "--until-released",
                                "--timeout",
                                "50ms"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_THAT(result.err, HasSubstr("no process opened it"));
}

TEST_F(cli_test, wait_removed_returns_after_removal) {
  const auto broker = cli_.serve();
  create("temporary", "4096");
  auto waiter = cli_.start({"wait", "temporary", "--removed", "--timeout", "60s", "--json"});
  EXPECT_EQ(cli_.run({"rm", "temporary"}).status, exited(0));
  EXPECT_EQ(waiter.wait_exit(seconds(20)), exited(0)) << waiter.output().all_output();
  EXPECT_EQ(json::parse(waiter.text(stream::out)).at("removed"), "temporary");
}

// ---- JSON ----

TEST_F(cli_test, json_has_exactly_documented_fields) {
  const auto broker = cli_.serve();
  const std::set<std::string> info{"name",
                                   "generation",
                                   "size_bytes",
                                   "allocated_bytes",
                                   "chunks",
                                   "backend",
                                   "device",
                                   "lifetime",
                                   "published",
                                   "state",
                                   "leases",
                                   "creator",
                                   "metadata_bytes",
                                   "ending"};
  const std::set<std::string> mapped{"name",
                                     "generation",
                                     "epoch",
                                     "size_bytes",
                                     "backend",
                                     "device",
                                     "lifetime",
                                     "access",
                                     "metadata_bytes"};
  const auto created = document_of(cli_.run({"create",
                                             "shape",
                                             "--size",
                                             "5000",
                                             "--device",
                                             "host",
                                             "--lifetime",
                                             "persistent",
                                             "--metadata",
                                             "text",
                                             "--json"}))
                           .at("created");
  auto of_create = mapped;
  of_create.insert("requested_device");
  EXPECT_EQ(keys(created), of_create);
  EXPECT_EQ(created.at("requested_device"), "host");
  EXPECT_EQ(created.at("metadata_bytes"), 4);

  auto of_open = mapped;
  of_open.insert({"metadata_text", "metadata_base64", "crc32c", "out"});
  const auto opened = document_of(cli_.run({"open", "shape", "--json"})).at("opened");
  EXPECT_EQ(keys(opened), of_open);
  EXPECT_EQ(opened.at("metadata_text"), "text");
  EXPECT_EQ(opened.at("crc32c"), nullptr);

  const auto list = document_of(cli_.run({"ls", "--json"}));
  EXPECT_EQ(keys(list), (std::set<std::string>{"domain", "socket", "segments"}));
  ASSERT_EQ(list.at("segments").size(), 1U);
  const auto& entry = list.at("segments").at(0);
  EXPECT_EQ(keys(entry), info);
  EXPECT_EQ(entry.at("size_bytes"), 5000);
  const std::uint64_t page = gpushm::base::host_page_bytes();
  EXPECT_EQ(entry.at("allocated_bytes"), (5000 + page - 1) / page * page);
  EXPECT_EQ(entry.at("generation"), created.at("generation"));
  EXPECT_EQ(keys(entry.at("creator")), (std::set<std::string>{"uid", "pid", "alive"}));
  EXPECT_EQ(keys(entry.at("device")),
            (std::set<std::string>{"kind", "uuid", "pci_address", "minor"}));
  EXPECT_EQ(document_of(cli_.run({"stat", "shape", "--json"})),
            (json{{"segment", entry}, {"timeline", nullptr}}));
}

TEST_F(cli_test, automatic_device_reports_host) {
  const auto broker = cli_.serve();
  const auto result =
      cli_.run({"create", "auto", "--size", "4096", "--lifetime", "persistent", "--json"});
  ASSERT_EQ(result.status, exited(0)) << result.err;
  if (document_of(result).at("created").at("device").at("kind") == "host") {
    EXPECT_THAT(result.err, HasSubstr("host memory"));
  }
}

}  // namespace
}  // namespace gpushm_tests
