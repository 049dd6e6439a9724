// SPDX-License-Identifier: Apache-2.0
// `gpushm-oci-runtime`, started as by an engine, with a script in place of runc that prints its
// arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* document = R"({"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[
{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0","hostPath":"/dev/null"}]}}],
"containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],
"hooks":[{"hookName":"createContainer","path":"/bin/hook"}],
"mounts":[{"hostPath":"/x","containerPath":"/lib/libnvidia-encode.so.1"}]}})";
constexpr const char* config =
    R"({"ociVersion":"1.0.2","process":{"env":["A=1","NVIDIA_VISIBLE_DEVICES=0"]}})";

class oci_runtime : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(directory_ / "cdi");
    std::filesystem::create_directory(directory_ / "bundle");
    write(directory_ / "cdi/nvidia.json", document);
    write(spec(), config);
    // Records the arguments, the environment and the config at its start.
    write(runc(),
          "#!/bin/sh\necho \"args $*\"\necho \"variable $PROBE\"\ncat \"$SPEC\" > \"$SPEC.seen\"\n"
          "exit 7\n");
    ::chmod(runc().c_str(), 0755);
    set("");
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
  [[nodiscard]] std::string spec() const { return directory_ / "bundle/config.json"; }
  [[nodiscard]] std::string runc() const { return directory_ / "runc"; }
  [[nodiscard]] std::string log() const { return directory_ / "log"; }
  void set(const std::string& more) const {
    std::ostringstream text;
    text << "runtimes: [" << runc() << "]\nspec_dirs: [" << (directory_ / "cdi")
         << "]\nlog: " << log() << "\n"
         << more;
    if (more.find("accept_variable") == std::string::npos) {
      text << "accept_variable_unprivileged: true\n";
    }
    write(directory_ / "settings.yaml", text.str());
  }
  [[nodiscard]] run_result run(const std::vector<std::string>& arguments,
                               const std::string& working_directory = {}) const {
    spawn_options options;
    options.argv = {own_program("gpushm-oci-runtime")};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env = {{"GPUSHM_OCI_RUNTIME_CONFIG", directory_ / "settings.yaml"},
                   {"PROBE", "kept"},
                   {"SPEC", spec()}};
    options.working_directory = working_directory;
    return run_program(options, std::chrono::seconds(30));
  }
  [[nodiscard]] std::vector<std::string> create() const {
    return {"--root", "/r", "--new-option", "create", "--bundle", directory_ / "bundle", "box"};
  }

  temp_dir directory_{0755};
};

TEST_F(oci_runtime, edits_config_and_executes_runtime) {
  const auto ran = run(create());
  EXPECT_EQ(ran.status, exited(7)) << ran.err;
  EXPECT_EQ(ran.out,
            "args --root /r --new-option create --bundle " + (directory_ / "bundle") +
                " box\nvariable kept\n");
  EXPECT_THAT(ran.err, IsEmpty());
  const json seen = json::parse(contents(spec() + ".seen"));
  EXPECT_EQ(seen["process"]["env"], json({"A=1", "NVIDIA_VISIBLE_DEVICES=void"}));
  EXPECT_EQ(seen["linux"]["devices"].size(), 1U);
  EXPECT_EQ(seen["linux"]["devices"][0]["path"], "/dev/nvidia0");
  EXPECT_EQ(seen["linux"]["resources"]["devices"][0]["minor"], 3);
  // The video library was not requested.
  EXPECT_FALSE(seen.contains("mounts"));
}

TEST_F(oci_runtime, default_bundle_is_working_directory) {
  const auto ran = run({"run", "box"}, directory_ / "bundle");
  EXPECT_EQ(ran.status, exited(7)) << ran.err;
  EXPECT_THAT(contents(spec()), HasSubstr("/dev/nvidia0"));
}

TEST_F(oci_runtime, other_subcommands_change_nothing) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"start", "box"},
                                             {"delete", "--force", "box"},
                                             {"--version"},
                                             {"exec", "--bundle", directory_ / "bundle", "create"},
                                             {}}) {
    const auto ran = run(words, directory_ / "bundle");
    EXPECT_EQ(ran.status, exited(7));
    EXPECT_EQ(contents(spec()), config);
  }
  EXPECT_FALSE(std::filesystem::exists(log()));
}

// ---- hostile images ----

TEST_F(oci_runtime, image_cannot_join_domain) {
  write(directory_ / "cdi/share.json",
        R"({"cdiVersion":"0.5.0","kind":"gpushm.dev/share","devices":[{"name":"b","containerEdits":
{"mounts":[{"hostPath":"/run/gpushm/d/b","containerPath":"/run/gpushm/d/b"}]}}]})");
  const std::string request =
      R"("process":{"env":["NVIDIA_VISIBLE_DEVICES=0,gpushm.dev/share=b"]}})";
  write(spec(), "{" + request);
  const auto ran = run(create());
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err,
            "gpushm-oci-runtime: read NVIDIA_VISIBLE_DEVICES \"gpushm.dev/share=b\": it names a "
            "device of another kind than nvidia.com/gpu (request it from the engine, for instance "
            "by --device)\n");
  EXPECT_EQ(contents(spec()), "{" + request);
  // podman copies the annotations of images.
  const std::string annotated =
      R"({"annotations":{"cdi.k8s.io/x":"gpushm.dev/share=b"},"process":{"env":["A=1"]}})";
  write(spec(), annotated);
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_EQ(contents(spec()), annotated);
  EXPECT_THAT(contents(log()),
              HasSubstr(" warning box: ignored annotation cdi.k8s.io/x: annotation_prefixes is "
                        "empty\n"));
  // The operator's setting accepts them, for engines that copy none.
  set("annotation_prefixes: [cdi.k8s.io/]\n");
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_THAT(contents(spec()), HasSubstr("/run/gpushm/d/b"));
}

TEST_F(oci_runtime, image_text_is_logged_as_one_line) {
  json hostile = json::parse(config);
  hostile["process"]["env"] = {
      "NVIDIA_VISIBLE_DEVICES=7\n2026-01-01T00:00:00Z info forged\x1b[31m\xc2\x9b"
      "2J"};
  write(spec(), hostile.dump());
  for (const char* more : {"", "accept_variable_unprivileged: false\n"}) {
    set(more);
    const auto ran = run(create());
    for (const std::string& text : {ran.err, contents(log())}) {
      EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
      EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << text;
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 2) << text;
    }
    EXPECT_THAT(contents(log()), HasSubstr(R"(\x1b[31m)"));
  }
}

TEST_F(oci_runtime, text_after_nul_byte_is_refused_and_kept) {
  using std::string_literals::operator""s;
  for (const std::string& tail : {"\0{}"s, "\0"s, "\n\0\n"s}) {
    write(spec(), config + tail);
    const auto ran = run(create());
    EXPECT_EQ(ran.status, exited(1));
    EXPECT_THAT(ran.err, HasSubstr(": NUL byte"));
    EXPECT_EQ(contents(spec()), config + tail);
  }
}

TEST_F(oci_runtime, time_is_linear_in_mounts_and_variables) {
  json large = json::parse(config);
  for (int i = 0; i < 30'000; ++i) {
    const std::string number = std::to_string(i);
    large["mounts"].push_back({{"destination", "/m" + number}, {"source", "/tmp"}});
    large["process"]["env"].push_back("A" + number + "=x");
  }
  write(spec(), large.dump());
  json many = json::parse(document);
  for (int i = 0; i < 4'000; ++i) {
    const std::string number = std::to_string(i);
    many["containerEdits"]["mounts"].push_back(
        {{"hostPath", "/x"}, {"containerPath", "/opt/" + number}});
    many["containerEdits"]["env"].push_back("B" + number + "=x");
  }
  write(directory_ / "cdi/nvidia.json", many.dump());
  // `run` allows 30 seconds; pairwise comparison took twice as long.
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_EQ(json::parse(contents(spec()))["mounts"].size(), 34'000U);
}

// ---- selection of the runtime and the file ----

TEST_F(oci_runtime, copy_of_itself_is_not_executed_repeatedly) {
  std::filesystem::copy_file(own_program("gpushm-oci-runtime"), directory_ / "copy");
  write(directory_ / "script",
        "#!/bin/sh\nexec " + own_program("gpushm-oci-runtime") + " \"$@\"\n");
  ::chmod((directory_ / "script").c_str(), 0755);
  for (const char* name : {"copy", "script"}) {
    write(directory_ / "settings.yaml", "runtimes: [" + (directory_ / name) + "]\n");
    const auto ran = run({"state", "box"});
    EXPECT_EQ(ran.status, exited(1)) << name;
    EXPECT_EQ(ran.err,
              "gpushm-oci-runtime: start runtime: the configured runtime is this program itself "
              "(name runc or crun as \"runtimes\" in the configuration)\n");
  }
}

TEST_F(oci_runtime, edits_config_file_of_crun_option) {
  write(directory_ / "bundle/other.json", config);
  EXPECT_EQ(run({"create", "-b" + (directory_ / "bundle"), "-f", "other.json", "box"}).status,
            exited(7));
  EXPECT_THAT(contents(directory_ / "bundle/other.json"), HasSubstr("/dev/nvidia0"));
  EXPECT_EQ(contents(spec()), config);
}

TEST_F(oci_runtime, container_without_request_keeps_its_file) {
  write(spec(), R"({  "process":{"env":["A=1"]}})");
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_EQ(contents(spec()), R"({  "process":{"env":["A=1"]}})");
}

TEST_F(oci_runtime, second_run_changes_nothing) {
  set("annotation_prefixes: [cdi.k8s.io/]\n");
  write(spec(), R"({"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=0"},"process":{"env":["A=1"]}})");
  EXPECT_EQ(run(create()).status, exited(7));
  const std::string once = contents(spec());
  EXPECT_THAT(once, HasSubstr("/bin/hook"));
  EXPECT_THAT(once, HasSubstr("libnvidia-encode"));
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_EQ(contents(spec()), once);
  EXPECT_THAT(contents(log()), HasSubstr("box: nvidia.com/gpu=0 is already present\n"));
}

TEST_F(oci_runtime, logs_each_edit_with_its_reason) {
  EXPECT_EQ(run(create()).status, exited(7));
  EXPECT_THAT(contents(log()),
              HasSubstr(" info box: nvidia.com/gpu=0: device /dev/nvidia0 (c 1:3 rwm), because "
                        "NVIDIA_VISIBLE_DEVICES=0\n"));
  EXPECT_THAT(
      contents(log()),
      HasSubstr("box: nvidia.com/gpu without the files that NVIDIA_DRIVER_CAPABILITIES does "
                "not request: /lib/libnvidia-encode.so.1\n"));
  std::filesystem::remove(log());
  write(spec(), config);
  set("log_format: json\n");
  EXPECT_EQ(run(create()).status, exited(7));
  std::istringstream lines(contents(log()));
  std::vector<json> entries;
  for (std::string line; std::getline(lines, line);) {
    entries.push_back(json::parse(line));
  }
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries.back()["device"], "nvidia.com/gpu=0");
  EXPECT_EQ(entries.back()["container"], "box");
  EXPECT_EQ(entries.back()["reason"], "NVIDIA_VISIBLE_DEVICES=0");
  EXPECT_EQ(entries.back()["edit"], "device /dev/nvidia0 (c 1:3 rwm)");
}

TEST_F(oci_runtime, unwritable_log_is_reported_and_not_fatal) {
  std::filesystem::create_directory(log());
  const auto ran = run(create());
  EXPECT_EQ(ran.status, exited(7));
  EXPECT_EQ(ran.err, "gpushm-oci-runtime: write log \"" + log() + "\": Is a directory (EISDIR)\n");
}

TEST_F(oci_runtime, error_is_logged_for_engine_and_file_is_unchanged) {
  write(spec(), R"({"process":{"env":["NVIDIA_VISIBLE_DEVICES=7"]}})");
  const std::string engine_log = directory_ / "engine-log";
  auto words = create();
  words.insert(words.begin(), {"--log", engine_log, "--log-format", "json"});
  const auto ran = run(words);
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_THAT(ran.out, IsEmpty());
  const std::string begin = "gpushm-oci-runtime: add devices \"7\": ";
  EXPECT_THAT(ran.err, StartsWith(begin));
  const json reported = json::parse(contents(engine_log));
  EXPECT_EQ(reported["level"], "error");
  EXPECT_THAT(reported["msg"].get<std::string>(), StartsWith(begin));
  EXPECT_TRUE(reported.contains("time"));
  EXPECT_EQ(contents(spec()), R"({"process":{"env":["NVIDIA_VISIBLE_DEVICES=7"]}})");
  EXPECT_FALSE(std::filesystem::exists(spec() + ".seen"));
  EXPECT_THAT(contents(log()), HasSubstr(" error box: add devices \"7\": "));
}

TEST_F(oci_runtime, dry_run_prints_diff_and_changes_nothing) {
  auto words = create();
  words.insert(words.begin(), "--dry-run");
  const auto ran = run(words);
  EXPECT_EQ(ran.status, exited(0)) << ran.err;
  EXPECT_THAT(ran.out,
              StartsWith("--- " + spec() + "\n+++ " + spec() + " (with devices)\n@@ -3,7 +3,"));
  EXPECT_THAT(ran.out,
              HasSubstr("\n       \"A=1\",\n-      \"NVIDIA_VISIBLE_DEVICES=0\"\n"
                        "+      \"NVIDIA_VISIBLE_DEVICES=void\"\n"));
  EXPECT_EQ(contents(spec()), config);
  EXPECT_FALSE(std::filesystem::exists(spec() + ".seen"));
  EXPECT_FALSE(std::filesystem::exists(log()));
  write(spec(), "{}");
  EXPECT_THAT(run(words).out, IsEmpty());
}

TEST_F(oci_runtime, never_executes_itself) {
  std::filesystem::create_symlink(own_program("gpushm-oci-runtime"), directory_ / "loop");
  write(directory_ / "settings.yaml", "runtimes: [" + (directory_ / "loop") + ", nosuch-runc]\n");
  const auto ran = run({"state", "box"});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.err,
            "gpushm-oci-runtime: find runtime \"" + (directory_ / "loop") +
                " (is this program itself), nosuch-runc\": no such program in $PATH (install runc "
                "or crun, or name one as \"runtimes\" in the configuration)\n");
}

TEST_F(oci_runtime, invalid_settings_are_fatal) {
  set("accept_mount: true\n");
  const auto ran = run({"state", "box"});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.err,
            "gpushm-oci-runtime: read settings \"" + (directory_ / "settings.yaml") +
                "\": line 4, column 1: unknown setting \"accept_mount\"\n");
  std::filesystem::remove(directory_ / "settings.yaml");
  EXPECT_EQ(run({"state", "box"}).err,
            "gpushm-oci-runtime: read settings \"" + (directory_ / "settings.yaml") +
                "\": No such file or directory (ENOENT)\n");
}

TEST_F(oci_runtime, invalid_bundle_is_reported) {
  std::filesystem::remove(spec());
  EXPECT_EQ(run(create()).err,
            "gpushm-oci-runtime: read config \"" + spec() +
                "\": open: No such file or directory (ENOENT) (check the path)\n");
  write(spec(), "{\"process\": ");
  EXPECT_THAT(
      run(create()).err,
      StartsWith("gpushm-oci-runtime: read config \"" + spec() + "\": line 1, column 13: "));
}

}  // namespace
}  // namespace gpushm_testing
