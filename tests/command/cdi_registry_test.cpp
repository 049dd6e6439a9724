// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi list`, `validate` and `watch`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/broker_process/cli.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds timeout{30};

class cdi_registry_cli : public ::testing::Test {
 protected:
  cdi_registry_cli() {
    fs::create_directory(path("low"));
    fs::create_directory(path("high"));
  }

  [[nodiscard]] std::string path(const std::string& name) const { return cli_.directory() / name; }
  /// Writes by rename, as programs that write documents do.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = path(name);
    std::ofstream(file + ".tmp", std::ios::binary) << text;
    fs::rename(file + ".tmp", file);
    return file;
  }
  [[nodiscard]] static std::string document(const std::string& device,
                                            const std::string& edits = "env: [A=b]") {
    return "cdiVersion: 0.5.0\nkind: v/c\ndevices: [{name: " + device + ", containerEdits: {" +
           edits + "}}]\n";
  }
  /// Adds both directories to the command line.
  [[nodiscard]] std::vector<std::string> asked(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "cdi");
    for (const char* directory : {"low", "high"}) {
      arguments.emplace_back("--spec-dir");
      arguments.push_back(path(directory));
    }
    return arguments;
  }
  [[nodiscard]] run_result run(std::vector<std::string> arguments) const {
    return cli_.run(asked(std::move(arguments)));
  }

  cli cli_;
};

TEST_F(cdi_registry_cli, misspelt_command_suggests_near_match) {
  const auto wrong = cli_.run({"cdi", "lst"});
  EXPECT_EQ(wrong.status, exited(2));
  EXPECT_EQ(wrong.err,
            "gpushm: unknown command \"lst\" (did you mean list?)\n"
            "gpushm: see: gpushm cdi --help\n");
  EXPECT_EQ(cli_.run({"cdi", "list", "--bad"}).err,
            "gpushm: unknown option --bad\n"
            "gpushm: see: gpushm cdi list --help\n");
}

TEST_F(cdi_registry_cli, share_rejects_conflict) {
  fs::create_directories(path("domains/team"));
  write("low/other.yaml",
        "cdiVersion: 0.5.0\nkind: gpushm.dev/share\n"
        "devices: [{name: team, containerEdits: {env: [A=b]}}]\n");
  const auto refused = cli_.run(
      {"cdi", "share", "--directory", path("domains"), "--output", path("low/share.yaml")});
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(
      refused.err,
      "gpushm: write CDI document \"" + path("low/share.yaml") + "\": " + path("low/other.yaml") +
          " also defines gpushm.dev/share=team, and engines ignore a device that two documents "
          "in one directory define (remove that file, or choose another --vendor, --class or "
          "--output)\n");
  EXPECT_FALSE(fs::exists(path("low/share.yaml")));
  const auto made = cli_.run({"cdi",
                              "share",
                              "team",
                              "--directory",
                              path("domains"),
                              "--output",
                              path("high/share.json")});
  EXPECT_EQ(made.status, exited(0)) << made.err;
  EXPECT_EQ(run({"validate"}).status, exited(0));
  const auto no_directory = cli_.run({"cdi", "share", "--directory", path("high")});
  EXPECT_EQ(no_directory.err,
            "gpushm: find domains \"" + path("high") +
                "\": it contains no domain (start a broker (gpushm serve --mode 0666), or give a "
                "domain)\n");
}

// ---- list ----

TEST_F(cdi_registry_cli, list_separates_devices_and_problems) {
  const std::string good = write("low/good.yaml", document("a"));
  const std::string bad = write("high/bad.json", "{");
  const auto result = run({"list"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.out,
            "DEVICE  VERSION  FILE\n"
            "v/c=a   0.5.0    " +
                good + "\n");
  EXPECT_EQ(result.err,
            "gpushm: " + bad +
                ":1:2: not valid YAML or JSON: did not find expected node content while "
                "parsing a flow node [syntax]\n");
}

TEST_F(cdi_registry_cli, file_names_are_escaped) {
  const std::string name = "low/\x1b]0;title\x07\nv.c=forged.yaml";
  write(name, document("one"));
  write(
      "low/\xc2\x9b"
      "2J.yaml",
      "cdiVersion: x\n");
  for (const char* command : {"list", "validate"}) {
    const auto ran = run({command});
    for (const std::string& text : {ran.out, ran.err}) {
      EXPECT_EQ(text.find_first_of("\x1b\x07"), std::string::npos) << text;
      EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << text;
      EXPECT_EQ(text.find("\nv.c=forged"), std::string::npos) << text;
    }
  }
}

TEST_F(cdi_registry_cli, list_prints_json) {
  const std::string good = write("low/good.yaml", document("a"));
  const auto result = run({"list", "--json"});
  ASSERT_EQ(result.status, exited(0));
  EXPECT_EQ(json::parse(result.out),
            (json{{"devices",
                   {{{"name", "v/c=a"},
                     {"kind", "v/c"},
                     {"device", "a"},
                     {"version", "0.5.0"},
                     {"file", good}}}},
                  {"problems", json::array()}}));
}

TEST_F(cdi_registry_cli, list_reports_no_devices) {
  const auto result = run({"list"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "gpushm: no devices in " + path("low") + ", " + path("high") + "\n");
}

// ---- validate ----

TEST_F(cdi_registry_cli, validate_reports_every_problem_of_files) {
  const std::string good = write("good.yaml", document("a"));
  const std::string bad = write("bad.yaml", document("a-", "env: [A], foo: 1"));
  const auto fine = cli_.run({"cdi", "validate", good});
  EXPECT_EQ(fine.status, exited(0));
  EXPECT_EQ(fine.out, "1 document: 0 problems, 0 warnings\n");
  EXPECT_EQ(fine.err, "");
  const auto result = cli_.run({"cdi", "validate", bad, good, path("nothing")});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(
      result.out,
      bad +
          ":3:18: the name of a device cannot be \"a-\": it must end with a letter or a digit "
          "[device-name]\n" +
          bad + ":3:45: an environment variable must be \"NAME=value\", not \"A\" [env]\n" + bad +
          ":3:49: containerEdits has no field \"foo\"; remove it or correct its name (env, "
          "deviceNodes, netDevices, hooks, mounts, intelRdt, additionalGids) "
          "[unknown-field]\n" +
          path("nothing") +
          ": it cannot be read: No such file or directory (ENOENT) [unreadable]\n"
          "3 documents: 4 problems, 0 warnings\n");
}

TEST_F(cdi_registry_cli, validate_reports_conflicts_of_the_registry) {
  const std::string one = write("low/one.yaml", document("a"));
  const std::string two = write("low/two.yaml", document("a"));
  const auto result = run({"validate"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_EQ(result.out,
            one + ": device \"v/c=a\" is also in " + two +
                "; remove it from one of them, because neither is used [conflict]\n" + two +
                ": device \"v/c=a\" is also in " + one +
                "; remove it from one of them, because neither is used [conflict]\n"
                "2 documents: 2 problems, 0 warnings\n");
  // A definition in a directory of higher priority does not help.
  const std::string three = write("high/three.yaml", document("a"));
  EXPECT_THAT(run({"validate"}).out,
              HasSubstr("because engines use neither, nor the definition in " + three));
  const auto listed = run({"list"});
  EXPECT_THAT(listed.out, Not(HasSubstr("v/c=a")));
  EXPECT_THAT(listed.err, HasSubstr("engines use neither"));
  fs::remove(two);
  EXPECT_EQ(run({"validate"}).status, exited(0));
  EXPECT_THAT(run({"list"}).out, HasSubstr("v/c=a"));
}

TEST_F(cdi_registry_cli, validate_warns_about_missing_host_paths) {
  struct stat null {};
  ASSERT_EQ(::stat("/dev/null", &null), 0);
  const std::string here = path("here");
  std::ofstream(here) << "x";
  const std::string file = write(
      "a.yaml",
      document(
          "a",
          "deviceNodes: [{path: /dev/null, major: 1, minor: 99}, {path: /x, hostPath: " +
              path("gone") + "}, {path: " + here + "}], mounts: [{hostPath: " + path("gone-too") +
              ", containerPath: /y}, {hostPath: " + here +
              ", containerPath: /z}], hooks: [{hookName: prestart, path: " + path("hook") + "}]"));
  const auto result = cli_.run({"cdi", "validate", file});
  EXPECT_EQ(result.status, exited(0));
  const std::string gone =
      " cannot be accessed on this machine: No such file or directory (ENOENT) ";
  EXPECT_EQ(result.out,
            file +
                ": warning: \"/dev/null\" has major:minor 1:3 on this machine, but the document "
                "has 1:99; generate it again [other-numbers]\n" +
                file + ": warning: the device node \"" + path("gone") + "\"" + gone +
                "[not-on-host]\n" + file + ": warning: \"" + here +
                "\" is not a device node on this machine [not-a-device]\n" + file +
                ": warning: the mount \"" + path("gone-too") + "\"" + gone + "[not-on-host]\n" +
                file + ": warning: the hook \"" + path("hook") + "\"" + gone +
                "[not-on-host]\n"
                "1 document: 0 problems, 5 warnings\n");
}

TEST_F(cdi_registry_cli, validate_prints_json) {
  const std::string file = write("a.yaml", document("a") + "foo: 1\n");
  const auto result = cli_.run({"cdi", "validate", "--json", file});
  EXPECT_EQ(result.status, exited(1));
  const json seen = json::parse(result.out);
  EXPECT_THAT(seen["documents"], IsEmpty());
  EXPECT_THAT(seen["warnings"], IsEmpty());
  ASSERT_EQ(seen["problems"].size(), 1U);
  EXPECT_EQ(seen["problems"][0]["file"], file);
  EXPECT_EQ(seen["problems"][0]["line"], 4);
  EXPECT_EQ(seen["problems"][0]["column"], 1);
  EXPECT_EQ(seen["problems"][0]["rule"], "unknown-field");
}

TEST_F(cdi_registry_cli, validate_reads_standard_input) {
  auto process = cli_.start({"cdi", "validate", "-"});
  process.write("{");
  process.close_stdin();
  EXPECT_EQ(process.wait_exit(timeout), exited(1));
  EXPECT_THAT(process.text(gpushm_testing::stream::out),
              HasSubstr("-:1:2: not valid YAML or JSON"));
}

TEST_F(cdi_registry_cli, validate_takes_files_or_directories) {
  const auto result = cli_.run({"cdi", "validate", "x.yaml", "--spec-dir", path("low")});
  EXPECT_EQ(result.status, exited(2));
  EXPECT_EQ(result.out, "");
}

// ---- watch ----

TEST_F(cdi_registry_cli, watch_prints_changes_until_stopped) {
  const std::string first = write("low/first.yaml", document("a"));
  auto process = cli_.start(asked({"watch"}));
  process.wait_for_line("^added v/c=a " + first + "$", timeout);
  const std::string second = write("high/second.yaml", document("b"));
  process.wait_for_line("^added v/c=b " + second + "$", timeout);
  write("high/second.yaml", document("b", "env: [A=c]"));
  process.wait_for_line("^changed v/c=b " + second + "$", timeout);
  write("high/bad.yaml", "{");
  process.wait_for_line("^problem " + path("high/bad.yaml") + ":1:2: .* \\[syntax\\]$", timeout);
  fs::remove(path("high/bad.yaml"));
  process.wait_for_line("^solved " + path("high/bad.yaml") + ":1:2: .* \\[syntax\\]$", timeout);
  fs::remove_all(path("high"));
  process.wait_for_line("^removed v/c=b " + second + "$", timeout);
  fs::create_directory(path("high"));
  write("high/third.yaml", document("a"));
  process.wait_for_line("^changed v/c=a " + path("high/third.yaml") + "$", timeout);
  process.kill(SIGTERM);
  EXPECT_EQ(process.wait_exit(timeout), exited(0));
  EXPECT_EQ(process.text(gpushm_testing::stream::err), "");
}

TEST_F(cdi_registry_cli, watch_prints_one_object_per_line) {
  auto process = cli_.start(asked({"watch", "--json"}));
  const std::string file = path("low/a.yaml");
  write("low/a.yaml", document("a"));
  EXPECT_EQ(json::parse(process.wait_for_line("added", timeout)),
            (json{{"event", "added"}, {"device", "v/c=a"}, {"file", file}}));
  write("low/a.yaml", "");
  EXPECT_EQ(json::parse(process.wait_for_line("problem", timeout)),
            (json{{"event", "problem"},
                  {"file", file},
                  {"rule", "empty"},
                  {"text", "it contains no CDI document"}}));
  process.kill(SIGINT);
  EXPECT_EQ(process.wait_exit(timeout), exited(0));
}

}  // namespace
}  // namespace gpushm_tests
