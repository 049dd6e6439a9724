// SPDX-License-Identifier: Apache-2.0
// The arguments with which engines call a runtime, and the runtime's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/gpushm-oci-runtime/command_line.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {
namespace {

using ::testing::ElementsAre;

template <typename Call>
std::string problem_of(Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure.what();
  }
  return "none";
}

TEST(oci_runtime_arguments, containerd_call_is_parsed) {
  const std::vector<std::string> words{"--root",
                                       "/run/containerd/runc/k8s.io",
                                       "--log",
                                       "/run/b/log.json",
                                       "--log-format",
                                       "json",
                                       "--systemd-cgroup",
                                       "create",
                                       "--bundle",
                                       "/run/b",
                                       "--pid-file",
                                       "/run/b/init.pid",
                                       "0123abc"};
  const auto called = read_command_line(words);
  EXPECT_EQ(called.subcommand, "create");
  EXPECT_EQ(called.bundle, "/run/b");
  EXPECT_EQ(called.container, "0123abc");
  EXPECT_EQ(called.log, "/run/b/log.json");
  EXPECT_TRUE(called.log_json);
  EXPECT_TRUE(called.creates_container());
  EXPECT_EQ(called.forwarded, words);
}

TEST(oci_runtime_arguments, podman_call_is_parsed) {
  const auto called = read_command_line({"--systemd-cgroup",
                                         "--log-format=json",
                                         "--log=file:/run/oci-log",
                                         "create",
                                         "--bundle=/b",
                                         "--pid-file",
                                         "/run/pidfile",
                                         "--console-socket",
                                         "/run/attach",
                                         "name"});
  EXPECT_EQ(called.bundle, "/b");
  EXPECT_EQ(called.container, "name");
  EXPECT_EQ(called.log, "/run/oci-log");
  EXPECT_TRUE(called.log_json);
}

TEST(oci_runtime_arguments, all_forms_of_bundle_are_parsed) {
  const auto bundle = [](std::vector<std::string> words) {
    words.insert(words.begin(), "run");
    return read_command_line(words).bundle;
  };
  EXPECT_EQ(bundle({"x"}), ".");
  EXPECT_EQ(bundle({"-b", "/b", "x"}), "/b");
  EXPECT_EQ(bundle({"-b=/b", "x"}), "/b");
  EXPECT_EQ(bundle({"-bundle", "/b", "x"}), "/b");
  EXPECT_EQ(bundle({"-bundle=/b", "x"}), "/b");
  EXPECT_EQ(bundle({"x", "--bundle", "/b"}), "/b");
  EXPECT_EQ(bundle({"--bundle", "/a", "--bundle", "/b", "x"}), "/b");
  EXPECT_EQ(bundle({"--bundle", "create", "x"}), "create");
  EXPECT_EQ(problem_of([&] { bundle({"--bundle"}); }),
            "read arguments \"--bundle\": the value is missing");
}

// crun's parser is argp, which accepts a value in the same argument.
TEST(oci_runtime_arguments, crun_forms_of_bundle_and_config_are_parsed) {
  const auto file = [](std::vector<std::string> words) {
    words.insert(words.begin(), "create");
    const auto called = read_command_line(words);
    EXPECT_EQ(called.container, "x");
    return called.config_file();
  };
  EXPECT_EQ(file({"x"}), "./config.json");
  EXPECT_EQ(file({"-b/b", "x"}), "/b/config.json");
  EXPECT_EQ(file({"-b/b=c", "x"}), "/b=c/config.json");
  EXPECT_EQ(file({"-b", "/b", "-f", "other.json", "x"}), "/b/other.json");
  EXPECT_EQ(file({"-b/b", "-fother.json", "x"}), "/b/other.json");
  EXPECT_EQ(file({"-b/b", "--config", "other.json", "x"}), "/b/other.json");
  EXPECT_EQ(file({"--config=/etc/c.json", "--bundle=/b", "x"}), "/etc/c.json");
  EXPECT_EQ(problem_of([&] { file({"x", "-f"}); }), "read arguments \"--f\": the value is missing");
}

TEST(oci_runtime_arguments, unknown_options_are_forwarded) {
  const auto subcommand = [](const std::vector<std::string>& words) {
    const auto called = read_command_line(words);
    EXPECT_EQ(called.forwarded, words);
    return called.subcommand;
  };
  EXPECT_EQ(subcommand({}), "");
  EXPECT_EQ(subcommand({"--version"}), "");
  EXPECT_EQ(subcommand({"--new", "create", "x"}), "create");
  EXPECT_EQ(subcommand({"--new", "value", "create", "x"}), "create");
  EXPECT_EQ(subcommand({"--new=value", "create", "x"}), "create");
  EXPECT_EQ(subcommand({"--root", "create", "delete", "x"}), "create");
  EXPECT_EQ(subcommand({"--root=create", "delete", "x"}), "delete");
  EXPECT_EQ(subcommand({"--debug", "delete", "create"}), "delete");
  EXPECT_EQ(subcommand({"--log", "create", "kill", "create", "9"}), "kill");
  EXPECT_FALSE(read_command_line({"start", "x"}).creates_container());
  EXPECT_TRUE(read_command_line({"restore", "x"}).creates_container());
}

TEST(oci_runtime_arguments, journal_is_not_a_log_file) {
  EXPECT_EQ(read_command_line({"--log=journald:x", "create", "x"}).log, "");
  EXPECT_EQ(read_command_line({"--log=syslog:x", "create", "x"}).log, "");
}

TEST(oci_runtime_arguments, dry_run_is_not_forwarded) {
  EXPECT_TRUE(read_command_line({"--dry-run", "create", "x"}).dry_run);
  EXPECT_FALSE(read_command_line({"create", "--dry-run", "x"}).dry_run);
  EXPECT_EQ(problem_of([] {
              (void)read_command_line({"--dry-run", "kill", "x"});
            }),
            "read arguments \"--dry-run\": the subcommand does not create a container "
            "(gpushm-oci-runtime --dry-run create --bundle DIR ID)");
}

std::string settings_problem(std::string_view text) {
  return problem_of([&] { (void)parse_settings(text, "f"); });
}

TEST(oci_runtime_settings, have_defaults) {
  for (const char* nothing : {"", "# nothing\n", "{}", "runtimes:\nlog:\n"}) {
    const auto chosen = parse_settings(nothing, "f");
    EXPECT_THAT(chosen.runtimes, ElementsAre("runc", "crun"));
    EXPECT_THAT(chosen.spec_dirs, ElementsAre("/etc/cdi", "/var/run/cdi"));
    EXPECT_EQ(chosen.default_kind, "nvidia.com/gpu");
    EXPECT_FALSE(chosen.accept_mounts);
    EXPECT_FALSE(chosen.accept_variable_unprivileged);
    EXPECT_THAT(chosen.annotation_prefixes, ElementsAre());
    EXPECT_TRUE(chosen.filter_by_capabilities);
    EXPECT_THAT(chosen.default_capabilities, ElementsAre("utility", "compute"));
    EXPECT_EQ(chosen.log, "");
  }
}

TEST(oci_runtime_settings, are_parsed) {
  const auto chosen = parse_settings(R"(
runtimes: [/opt/runc]
spec_dirs:
- /a
- /b
default_kind: other.org/gpu
annotation_prefixes: [a/]
accept_mounts: true
accept_variable_unprivileged: true
filter_by_capabilities: false
default_capabilities: [compute]
supported_capabilities: [compute, video]
log: /var/log/x
log_format: json
)",
                                     "f");
  EXPECT_THAT(chosen.runtimes, ElementsAre("/opt/runc"));
  EXPECT_THAT(chosen.spec_dirs, ElementsAre("/a", "/b"));
  EXPECT_EQ(chosen.default_kind, "other.org/gpu");
  EXPECT_THAT(chosen.annotation_prefixes, ElementsAre("a/"));
  EXPECT_TRUE(chosen.accept_mounts);
  EXPECT_TRUE(chosen.accept_variable_unprivileged);
  EXPECT_FALSE(chosen.filter_by_capabilities);
  EXPECT_THAT(chosen.default_capabilities, ElementsAre("compute"));
  EXPECT_THAT(chosen.supported_capabilities, ElementsAre("compute", "video"));
  EXPECT_EQ(chosen.log, "/var/log/x");
  EXPECT_TRUE(chosen.log_json);
}

TEST(oci_runtime_settings, errors_have_line_and_column) {
  EXPECT_EQ(settings_problem("log: /x\nruntime: runc\n"),
            "read settings \"f\": line 2, column 1: unknown setting \"runtime\"");
  EXPECT_EQ(settings_problem("log_format: xml"),
            "read settings \"f\": line 1, column 13: log_format is neither text nor json");
  EXPECT_EQ(settings_problem("runtimes: []"), "read settings \"f\": runtimes is empty");
  for (const char* wrong : {"log: [a]",
                            "runtimes: runc",
                            "accept_mounts: 7",
                            "log: a\nlog: b",
                            "[a]",
                            "log: 'x",
                            "a: 1\n---\nb: 2\n"}) {
    EXPECT_THAT(settings_problem(wrong), ::testing::StartsWith("read settings \"f\": line "))
        << wrong;
  }
}

}  // namespace
}  // namespace gpushm::oci_runtime
