// SPDX-License-Identifier: Apache-2.0
// The container harness: its guarantees, checked from inside containers.

#include "tests/support/container/container.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/container/support.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

std::string output_of(const container_options& options) {
  auto box = container::start(options);
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(0)) << box.all_output();
  return box.text(stream::out);
}

class container_harness : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_containers(GetParam())) {
      GTEST_SKIP() << *reason;
    }
  }
  [[nodiscard]] static container_options shell(const std::string& script) {
    container_options options;
    options.argv = {"/bin/sh", "-c", script};
    if (GetParam()) {
      options.user_ns.emplace();
    }
    return options;
  }
};

TEST_P(container_harness, is_pid_1_without_privileges) {
  auto options = shell(
      "echo pid $$ uid $(id -u) gid $(id -g); grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' "
      "/proc/self/status | tr '\\t' ' '");
  options.uid = 1234;
  options.gid = 4321;
  const auto text = output_of(options);
  EXPECT_THAT(text, HasSubstr("pid 1 uid 1234 gid 4321\n"));
  EXPECT_THAT(text, HasSubstr("CapEff: 0000000000000000\n"));
  EXPECT_THAT(text, HasSubstr("CapBnd: 0000000000000000\n"));
  EXPECT_THAT(text, HasSubstr("NoNewPrivs: 1\n"));
  EXPECT_THAT(text, HasSubstr("Seccomp: 2\n"));
}

TEST_P(container_harness, has_private_namespaces) {
  const auto text = output_of(shell(
      "for n in pid ipc net uts mnt cgroup user; do echo $n $(readlink /proc/self/ns/$n); done"));
  for (const char* name : {"pid", "ipc", "net", "uts", "mnt", "cgroup", "user"}) {
    const auto own = std::filesystem::read_symlink(std::string("/proc/self/ns/") + name).string();
    const bool shared = name == std::string("user") && !GetParam();
    EXPECT_EQ(text.find(own) != std::string::npos, shared) << name << "\n" << text;
  }
}

TEST_P(container_harness, mounts_are_as_requested) {
  const temp_dir directory(0777);
  std::ofstream(directory / "in") << "hello";
  auto options =
      shell("cat /a/in; echo out > /b/out; echo x > /a/x || echo read-only; ls /; ls /dev");
  options.mounts = {{directory.path(), "/a", false, true}, {directory.path(), "/b", true, true}};
  const auto text = output_of(options);
  EXPECT_THAT(text, HasSubstr("hello"));
  EXPECT_THAT(text, HasSubstr("read-only"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("kvm")));
  std::string written;
  std::ifstream(directory / "out") >> written;
  EXPECT_EQ(written, "out");
  EXPECT_FALSE(std::filesystem::exists(directory / "x"));
}

TEST_P(container_harness, tmp_is_writable) {
  EXPECT_EQ(output_of(shell("echo yes > /tmp/x && cat /tmp/x")), "yes\n");
}

TEST_P(container_harness, exchanges_lines_and_can_be_killed) {
  auto box = container::start(shell("echo ready; read line; echo got $line; read line"));
  box.wait_for_line("^ready$", seconds(20));
  EXPECT_EQ(std::filesystem::exists("/proc/" + std::to_string(box.host_pid())), true);
  box.write("text\n");
  EXPECT_EQ(box.wait_for_line("^got", seconds(20)), "got text");
  box.kill(SIGKILL);
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(128 + SIGKILL)) << box.all_output();
}

TEST_P(container_harness, leaves_nothing_behind) {
  pid_t pid = 0;
  {
    auto box = container::start(shell("echo ready; read line"));
    box.wait_for_line("^ready$", seconds(20));
    pid = box.host_pid();
  }
  EXPECT_FALSE(std::filesystem::exists("/proc/" + std::to_string(pid)));
  EXPECT_THAT(gpushm_testing::cgroups_named("gpushm-test-" + std::to_string(::getpid()) + "-"),
              ::testing::IsEmpty());
}

TEST_P(container_harness, missing_program_is_named) {
  auto options = shell("");
  options.argv = {"/nonexistent/program"};
  auto box = container::start(options);
  EXPECT_NE(box.wait_exit(seconds(20)), exited(0));
  EXPECT_THAT(box.all_output(), HasSubstr("/nonexistent/program"));
}

TEST(container_harness_devices, only_listed_ones_open) {
  if (const auto reason = why_no_containers()) {
    GTEST_SKIP() << *reason;
  }
  // In place of a GPU's node: a character device with a distinct number. Root in the container owns
  // it, so that only the cgroup can refuse it.
  const std::string node = "/dev/fuse";
  if (::access(node.c_str(), R_OK | W_OK) != 0) {
    GTEST_SKIP() << node << " cannot be opened";
  }
  const std::string script = "(exec 3<" + node + ") 2>/dev/null && echo opened || echo refused";
  container_options options;
  options.argv = {"/bin/sh", "-c", script};
  options.uid = 0;
  EXPECT_EQ(output_of(options), "refused\n");
  options.mounts = {{node, node, true, false}};
  EXPECT_EQ(output_of(options), "refused\n");
  options.mounts.clear();
  options.device_nodes = {{node, {}}};
  EXPECT_EQ(output_of(options), "opened\n");
  // At another path it is the same device. If all devices are allowed, a mount is sufficient.
  const std::string other = "/dev/other";
  options.argv = {"/bin/sh", "-c", "exec 3<" + other + " && echo opened"};
  options.device_nodes = {{node, other}};
  EXPECT_EQ(output_of(options), "opened\n");
  options.device_nodes.clear();
  options.mounts = {{node, other, true, false}};
  options.privileged = true;
  EXPECT_EQ(output_of(options), "opened\n");
}

class container_harness_namespaces : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
  }
  [[nodiscard]] static std::string own(const char* kind) {
    return std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind).string();
  }
  [[nodiscard]] static std::string of(pid_t pid, const char* kind) {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/" + kind).string();
  }
  [[nodiscard]] static container_options sleeper() {
    container_options options;
    options.argv = {"/bin/sh", "-c", "echo ready $$; read line"};
    return options;
  }
};

TEST_F(container_harness_namespaces, of_the_host) {
  auto options = sleeper();
  options.pid.host = true;
  options.ipc.host = true;
  options.shm = "/dev/shm";
  auto box = container::start(options);
  const auto line = box.wait_for_line("^ready ", seconds(20));
  EXPECT_EQ(of(box.host_pid(), "pid"), own("pid"));
  EXPECT_EQ(of(box.host_pid(), "ipc"), own("ipc"));
  EXPECT_NE(of(box.host_pid(), "net"), own("net"));
  EXPECT_EQ(line, "ready " + std::to_string(box.host_pid()));
}

TEST_F(container_harness_namespaces, of_another_container) {
  auto first = container::start(sleeper());
  EXPECT_EQ(first.wait_for_line("^ready ", seconds(20)), "ready 1");
  const std::string place = "/proc/" + std::to_string(first.host_pid()) + "/ns/";
  auto options = sleeper();
  options.pid.path = place + "pid";
  options.ipc.path = place + "ipc";
  options.net.path = place + "net";
  options.sysfs = true;
  auto second = container::start(options);
  EXPECT_NE(second.wait_for_line("^ready ", seconds(20)), "ready 1");
  for (const char* kind : {"pid", "ipc", "net"}) {
    EXPECT_EQ(of(second.host_pid(), kind), of(first.host_pid(), kind)) << kind;
    EXPECT_NE(of(second.host_pid(), kind), own(kind)) << kind;
  }
  for (const char* kind : {"uts", "mnt", "cgroup"}) {
    EXPECT_NE(of(second.host_pid(), kind), of(first.host_pid(), kind)) << kind;
  }
}

TEST_F(container_harness_namespaces, privileged_has_all_capabilities_of_this_process) {
  container_options options;
  options.argv = {
      "/bin/sh", "-c", "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"};
  options.uid = 0;
  options.gid = 0;
  options.privileged = true;
  const auto text = output_of(options);
  std::ifstream status("/proc/self/status");
  std::string bounding;
  for (std::string line; std::getline(status, line);) {
    bounding = line.rfind("CapBnd:", 0) == 0 ? line : bounding;
  }
  ASSERT_FALSE(bounding.empty());
  EXPECT_THAT(text, HasSubstr(bounding + "\n"));
  EXPECT_THAT(text, HasSubstr("CapEff" + bounding.substr(6) + "\n"));
  EXPECT_THAT(text, HasSubstr("NoNewPrivs:\t0\n"));
  EXPECT_THAT(text, HasSubstr("Seccomp:\t0\n"));
}

INSTANTIATE_TEST_SUITE_P(, container_harness, ::testing::Bool(), [](const auto& setting) {
  return setting.param ? "user_namespace" : "plain";
});

}  // namespace
}  // namespace gpushm_testing
