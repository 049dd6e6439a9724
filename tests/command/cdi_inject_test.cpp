// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi inject`: its output and files, and that a failure leaves every byte of the file
// unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/broker_process/cli.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* config =
    "{\n    \"ociVersion\": \"1.0.2\",\n    \"new\": {\"b\": 1, \"a\": 18446744073709551615},\n"
    "    \"process\": {\"env\": [\"A=1\"]}\n}\n";

class cdi_inject : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(directory());
    define("gpus.json",
           R"({"cdiVersion":"0.5.0","kind":"v.com/gpu","devices":[
{"name":"0","containerEdits":{"env":["A=0","GPU=0"],"deviceNodes":[{"path":"/dev/gpu0","hostPath":"/dev/null"}]}},
{"name":"gone","containerEdits":{"deviceNodes":[{"path":"/dev/gpushm-gone"}]}},
{"name":"up","containerEdits":{"mounts":[{"hostPath":"../../etc","containerPath":"/x"}]}}]})");
    write(spec(), config);
  }
  [[nodiscard]] std::string directory() const { return cli_.directory() / "cdi"; }
  [[nodiscard]] std::string spec() const { return cli_.directory() / "config.json"; }
  void define(const std::string& name, const std::string& text) const {
    write(directory() + "/" + name, text);
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  [[nodiscard]] run_result inject(std::vector<std::string> more) const {
    more.insert(more.begin(), {"cdi", "inject", "--spec-dir", directory(), "--spec", spec()});
    return cli_.run(more);
  }
  void expect_unchanged() const {
    EXPECT_EQ(contents(spec()), config);
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(cli_.directory().path())) {
      files += entry.is_regular_file() ? 1U : 0U;
    }
    EXPECT_EQ(files, 1U) << "a temporary file was left";
  }

  cli cli_;
};

TEST_F(cdi_inject, prints_result_and_keeps_file) {
  const auto ran = inject({"v.com/gpu=0"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_THAT(ran.err, IsEmpty());
  EXPECT_THAT(ran.out, StartsWith("{\n    \"ociVersion\": \"1.0.2\",\n    \"new\": {"));
  EXPECT_EQ(
      ordered_json::parse(ran.out).dump(),
      R"({"ociVersion":"1.0.2","new":{"b":1,"a":18446744073709551615},)"
      R"("process":{"env":["A=0","GPU=0"]},)"
      R"("linux":{"devices":[{"path":"/dev/gpu0","type":"c","major":1,"minor":3,"fileMode":438}],)"
      R"("resources":{"devices":[{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}]}}})");
  expect_unchanged();
}

TEST_F(cdi_inject, in_place_replaces_file) {
  ASSERT_EQ(::chmod(spec().c_str(), 0640), 0);
  const std::string printed = inject({"v.com/gpu=0"}).out;
  const auto ran = inject({"v.com/gpu=0", "--in-place", "-v"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_THAT(ran.out, IsEmpty());
  EXPECT_EQ(ran.err,
            "gpushm: v.com/gpu=0: env A=0 (replaces another)\n"
            "gpushm: v.com/gpu=0: env GPU=0\n"
            "gpushm: v.com/gpu=0: device /dev/gpu0 (c 1:3 rwm)\n");
  EXPECT_EQ(contents(spec()), printed);
  struct stat status {};
  ASSERT_EQ(::stat(spec().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

TEST_F(cdi_inject, json_lists_edits) {
  const auto ran = inject({"v.com/gpu=0", "--in-place", "--json"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  const auto report = ordered_json::parse(ran.out);
  EXPECT_EQ(report["spec"], spec());
  ASSERT_EQ(report["edits"].size(), 3U);
  EXPECT_EQ(report["edits"][2],
            ordered_json({{"device", "v.com/gpu=0"}, {"edit", "device /dev/gpu0 (c 1:3 rwm)"}}));
  EXPECT_FALSE(report.contains("config"));
  write(spec(), config);
  EXPECT_EQ(ordered_json::parse(inject({"v.com/gpu=0", "--json"}).out)["config"]["process"]["env"],
            ordered_json({"A=0", "GPU=0"}));
}

TEST_F(cdi_inject, reads_standard_input) {
  auto command =
      cli_.command({"cdi", "inject", "v.com/gpu=0", "--spec", "-", "--spec-dir", directory()});
  auto running = gpushm_testing::child::start(command);
  running.write("{\"process\":{\"env\":[\"B=1\"]}}");
  running.close_stdin();
  EXPECT_EQ(running.wait_exit(std::chrono::seconds(30)), exited(0));
  EXPECT_THAT(running.text(gpushm_testing::stream::out),
              StartsWith(R"({"process":{"env":["B=1","A=0","GPU=0"]},)"));
  const auto refused = cli_.run({"cdi", "inject", "v.com/gpu=0", "--spec", "-", "--in-place"});
  EXPECT_EQ(refused.status, exited(2));
  EXPECT_EQ(
      refused.err,
      "gpushm: inject: standard input cannot be replaced (give a file, or omit --in-place)\n");
}

TEST_F(cdi_inject, wrong_usage_exits_with_2) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"cdi", "inject"},
           {"cdi", "inject", "v.com/gpu=0"},
           {"cdi", "inject", "--spec", spec()},
           {"cdi", "inject", "x", "--spec", spec(), "--nosuch"}}) {
    const auto ran = cli_.run(wrong);
    EXPECT_EQ(ran.status, exited(2)) << ::testing::PrintToString(wrong);
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_THAT(ran.err, HasSubstr("gpushm: "));
  }
}

TEST_F(cdi_inject, failure_keeps_file_unchanged) {
  struct failing {
    std::vector<std::string> devices;
    std::string begin;
  };
  for (const failing& each : std::vector<failing>{
           {{"v.com/gpu=0", "v.com/gpu=7", "w.org/x=1"}, "inject \"v.com/gpu=7, w.org/x=1\": "},
           {{"v.com/gpu=0", "v.com/gpu=gone"},
            "inject \"v.com/gpu=gone\": its node \"/dev/gpushm-gone\" cannot be accessed: "},
           {{"v.com/gpu=0", "v.com/gpu=up"},
            "inject \"v.com/gpu=up\": its mount of \"../../etc\" is not absolute"},
           {{"gpu0"}, "inject \"gpu0\": "}}) {
    auto arguments = each.devices;
    arguments.emplace_back("--in-place");
    const auto ran = inject(arguments);
    EXPECT_EQ(ran.status, exited(1));
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_THAT(ran.err, StartsWith("gpushm: " + each.begin));
    expect_unchanged();
  }
}

TEST_F(cdi_inject, unrelated_invalid_documents_are_ignored) {
  define("half.json", R"({"cdiVersion":"0.5.0","kind":"v.com/gpu","devices":[{"name":"h",)");
  std::filesystem::create_symlink("loop.json", directory() + "/loop.json");
  std::filesystem::create_symlink("/nonexistent/x.json", directory() + "/dangling.json");
  define("huge.json", "");
  ASSERT_EQ(::truncate((directory() + "/huge.json").c_str(), off_t{1} << 30), 0);
  ASSERT_EQ(::mkfifo((directory() + "/pipe.json").c_str(), 0600), 0);
  const auto ran = inject({"v.com/gpu=0"});
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  const auto missing = inject({"v.com/gpu=h", "--in-place"});
  EXPECT_EQ(missing.status, exited(1));
  expect_unchanged();
}

TEST_F(cdi_inject, missing_directory_has_no_devices) {
  std::filesystem::remove_all(directory());
  const auto ran = inject({"v.com/gpu=0", "--in-place"});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_THAT(ran.err, StartsWith("gpushm: inject \"v.com/gpu=0\": "));
  EXPECT_THAT(ran.err, HasSubstr("(run \"gpushm cdi list\" to list the devices)"));
  expect_unchanged();
}

TEST_F(cdi_inject, invalid_config_is_reported_with_file) {
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"", "line 1, column 1: "},
           {"{\"process\": {\"env\": [\"A=1\"]}", "line 1, column 29: "},
           {"[]", "it is not a JSON object"},
           {"{} {}", "line 1, column 4: "},
           {"{\"a\": \"\xff\"}", "line 1, column 8: "},
           {R"({"a":1,"a":2})", "duplicate key \"a\" in one object"}}) {
    write(spec(), text);
    const auto ran = inject({"v.com/gpu=0", "--in-place"});
    EXPECT_EQ(ran.status, exited(1)) << text;
    EXPECT_THAT(ran.err, StartsWith("gpushm: read config \"" + spec() + "\": " + problem));
    EXPECT_EQ(contents(spec()), text);
  }
  write(spec(), R"({"process":[]})");
  EXPECT_EQ(inject({"v.com/gpu=0"}).err,
            "gpushm: edit config \"" + spec() + "\": its member \"process\" is not an object\n");
}

TEST_F(cdi_inject, read_only_directory_keeps_file) {
  const std::string missing = cli_.directory() / "nosuch.json";
  const auto absent = cli_.run({"cdi", "inject", "v.com/gpu=0", "--spec", missing});
  EXPECT_EQ(absent.status, exited(1));
  EXPECT_EQ(absent.err,
            "gpushm: read config \"" + missing +
                "\": open: No such file or directory (ENOENT) (check the path)\n");
  if (::geteuid() != 0) {
    GTEST_SKIP() << "root is not refused";
  }
  ASSERT_EQ(::chmod(cli_.directory().path().c_str(), 0755), 0);
  auto command = cli_.command(
      {"cdi", "inject", "v.com/gpu=0", "--in-place", "--spec", spec(), "--spec-dir", directory()});
  command.uid = 12345;
  command.gid = 12345;
  const auto ran = gpushm_testing::run_program(command, std::chrono::seconds(30));
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_THAT(ran.err,
              StartsWith("gpushm: write config \"" + spec() + "\": mkostemp: Permission denied"));
  expect_unchanged();
}

}  // namespace
}  // namespace gpushm_tests
