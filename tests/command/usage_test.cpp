// SPDX-License-Identifier: Apache-2.0
// Conventions of the command line: help, versions, units, and the texts of usage errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/broker_process/cli.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using ::testing::HasSubstr;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

class usage_test : public ::testing::Test {
 protected:
  /// Runs `line`, split at blanks. These command lines are wrong: a broker is not needed.
  [[nodiscard]] run_result run(const std::string& line) const { return cli_.run(words(line)); }

  cli cli_;
};

TEST_F(usage_test, errors_name_the_words_of_the_command_line) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"create a --sise 1MiB", "unknown option --sise (did you mean --size?)"},
      {"create a --sise=1MiB", "unknown option --sise (did you mean --size?)"},
      {"create --zzz --sise 1 a --qqq",
       "unknown option --zzz, unknown option --sise (did you mean --size?), unknown option --qqq"},
      {"create a --time 1s --size 1", "unknown option --time (did you mean --timeout?)"},
      {"channel create c --slot-sise 1MiB",
       "unknown option --slot-sise (did you mean --slot-size?)"},
      {"channel sub c --output x", "unknown option --output (did you mean --out?)"},
      {"open a --wait 1s", "unknown option --wait (did you mean --timeout?)"},
      {"ls -x", "unknown option -x"},
      {"open a b c", "unexpected arguments \"b\" \"c\""},
      {"wait a b", "unexpected argument \"b\""},
      {"create a --size 1 --from f", "--size cannot be combined with --from"},
      {"create a --from f --size 1", "--size cannot be combined with --from"},
      {"stat a --broker", "NAME cannot be combined with --broker"},
      {"topo --json --svg", "--json cannot be combined with --svg"},
      {"ls --domain d", "--domain requires --by"},
      {"create a --size", "--size requires a value: SIZE"},
      {"create a --size 1 --size 2", "--size is given 2 times, at most 1"},
      {"load f --name n --threads 99", "--threads: \"99\" is not a number from 1 to 64"},
      {"load f --name n --threads x", "--threads: \"x\" is not a number from 1 to 64"},
      {"serve --log-level loud",
       "--log-level: \"loud\" is not one of debug|info|warning|error|off"},
      {"create a --size 64mb",
       "--size: \"64mb\" is not a size such as 4096, 64MiB or 1.5GiB (64MB is 64 million bytes)"},
      {"channel", "a command is required: create, pub, sub or stat"},
      {"k8s", "a command is required: lint"},
      {"create", "NAME is required"},
      {"open a --out - --json",
       "--json cannot be combined with --out -: both are for standard output"},
      {"import --file f --out - --json",
       "--json cannot be combined with --out -: both are for standard output"},
      {"channel sub c --out - --json",
       "--json cannot be combined with --out -: both are for standard output"}};
  for (const auto& [line, text] : cases) {
    const auto result = run(line);
    EXPECT_EQ(result.status, exited(2)) << line;
    EXPECT_THAT(result.err, ::testing::StartsWith("gpushm: " + text + "\ngpushm: see: gpushm "))
        << line;
    EXPECT_EQ(result.out, "") << line;
  }
}

TEST_F(usage_test, empty_devices_are_refused) {
  // As of a variable that is not set: the default would surprise.
  const std::vector<std::string> commands{"create a --size 1",
                                          "load f --name n",
                                          "open a",
                                          "export --file f --size 1",
                                          "import --file f",
                                          "demo",
                                          "channel create c --slot-size 1",
                                          "channel pub c",
                                          "channel sub c"};
  for (const std::string& line : commands) {
    std::vector<std::string> arguments = words(line);
    arguments.insert(arguments.end(), {"--device", ""});
    const auto result = cli_.run(arguments);
    EXPECT_EQ(result.status, exited(2)) << line;
    EXPECT_THAT(
        result.err,
        ::testing::StartsWith("gpushm: --device: \"\" is not a device such as host, 0, cuda:1, "
                              "GPU-<uuid> or MIG-<uuid> (leave the option out for the "
                              "default)\ngpushm: see: gpushm "))
        << line;
    EXPECT_EQ(result.out, "") << line;
  }
  EXPECT_EQ(cli_.run({"demo", "--consumer-device", ""}).status, exited(2));
}

TEST_F(usage_test, unknown_commands_fail_with_the_nearest_name_also_with_help) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"frobnicate", "unknown command \"frobnicate\""},
      {"crate", "unknown command \"crate\" (did you mean create?)"},
      {"list", "unknown command \"list\" (did you mean ls?)"},
      {"channel status", "unknown command \"status\" (did you mean stat?)"},
      {"channel publish", "unknown command \"publish\" (did you mean pub?)"},
      {"cdi generat", "unknown command \"generat\" (did you mean generate?)"},
      {"k8s lnit", "unknown command \"lnit\" (did you mean lint?)"},
      {"--socket /tmp/x ls",
       "unknown option --socket before a command (options follow the command: gpushm COMMAND "
       "--socket)"}};
  for (const auto& [line, text] : cases) {
    for (const std::string more : {"", " --help", " -h"}) {
      const auto result = run(line + more);
      EXPECT_EQ(result.status, exited(2)) << line << more;
      EXPECT_THAT(result.err, ::testing::StartsWith("gpushm: " + text + "\n")) << line << more;
      EXPECT_EQ(result.out, "") << line << more;
    }
  }
  EXPECT_THAT(run("help crate").err, HasSubstr("(did you mean create?)"));
  EXPECT_EQ(run("help channel nosuch").status, exited(2));
  // A program may have any options and arguments.
  EXPECT_THAT(run("run --domain d /bin/nosuch --sise --help").err,
              ::testing::Not(HasSubstr("unknown option")));
}

TEST_F(usage_test, help_is_a_command) {
  for (const auto& [line, same] : std::vector<std::pair<std::string, std::string>>{
           {"help", "--help"},
           {"help create", "create --help"},
           {"help channel", "channel --help"},
           {"help channel pub", "channel pub --help"},
           {"help cdi generate", "cdi generate --help"}}) {
    const auto result = run(line);
    EXPECT_EQ(result.status, exited(0)) << result.err;
    EXPECT_EQ(result.out, run(same).out) << line;
    EXPECT_THAT(result.out, HasSubstr("Usage: ")) << line;
  }
  EXPECT_THAT(run("help").out, HasSubstr("\n  help "));
}

TEST_F(usage_test, version_as_an_option_is_the_command) {
  const auto text = run("--version");
  EXPECT_EQ(text.status, exited(0));
  EXPECT_EQ(text.out, run("version").out);
  for (const char* line : {"--version --json", "--json --version", "version --json"}) {
    const auto result = run(line);
    EXPECT_EQ(result.status, exited(0)) << line << ": " << result.err;
    EXPECT_TRUE(json::parse(result.out).contains("version")) << line << ": " << result.out;
  }
}

TEST_F(usage_test, create_reports_other_errors_before_a_missing_hold) {
  const auto broker = cli_.serve();
  const std::string too_long(300, 'n');
  const std::vector<std::pair<std::string, std::string>> cases{
      {"create a --size 0 --device host", "the size"},
      {"create a --size 1 --device nosuch", "gpushm: "},
      {"create a --size 1 --device host --metadata @/nosuch", "/nosuch"},
      {"create a --from /nosuch --device host", "/nosuch"},
      {"create " + too_long + " --size 1 --device host", "255"},
      {"create a --size 1 --device host --chunk 0.5TiB --huge-pages --timeout 1s",
       "--timeout requires"},
      {"create a/~producer --size 1 --device host", "the library uses such names"}};
  for (const auto& [line, text] : cases) {
    const auto result = run(line);
    EXPECT_NE(result.status, exited(0)) << line;
    EXPECT_THAT(result.err, HasSubstr(text)) << line;
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("is freed as soon as"))) << line;
  }
  EXPECT_EQ(run("create a --size 1 --device host").err,
            "gpushm: create \"a\": a leased segment is freed as soon as this command exits (add "
            "--hold or --until-released, or use --lifetime persistent)\n");
  EXPECT_EQ(json::parse(run("ls --all --json").out).at("segments"), json::array());
}

TEST_F(usage_test, names_of_the_library_are_refused_and_others_listed) {
  const auto broker = cli_.serve();
  for (const char* line : {"create c/~page-1 --size 1 --device host --lifetime persistent",
                           "create ~signals-x --size 1 --device host --lifetime persistent",
                           "load /nosuch --name c/~timelines-1",
                           "channel create c/~consumer-1 --slot-size 1 --device host"}) {
    const auto result = run(line);
    EXPECT_EQ(result.status, exited(2)) << line;
    EXPECT_THAT(result.err, HasSubstr("gpushm ls hides them (choose a name without")) << line;
  }
  EXPECT_EQ(run("ls --all -q").out, "");
  ASSERT_EQ(run("create ~x --size 1 --device host --lifetime persistent").status, exited(0));
  EXPECT_EQ(run("ls -q").out, "~x\n");
}

TEST_F(usage_test, out_minus_is_standard_output) {
  const auto broker = cli_.serve();
  const std::string contents = "16 bytes of text";
  std::ofstream(cli_.directory() / "in") << contents;
  ASSERT_EQ(cli_.run({"create",
                      "t",
                      "--from",
                      cli_.directory() / "in",
                      "--device",
                      "host",
                      "--lifetime",
                      "persistent"})
                .status,
            exited(0));
  const auto result = cli_.run({"open", "t", "--out", "-", "--checksum"});
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_EQ(result.out, contents);
  EXPECT_THAT(result.err, HasSubstr("crc32c"));
  EXPECT_THAT(result.err, HasSubstr(crc32c_text(contents)));
  EXPECT_FALSE(std::filesystem::exists("-"));
}

}  // namespace
}  // namespace gpushm_tests
