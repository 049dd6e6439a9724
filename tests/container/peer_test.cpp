// SPDX-License-Identifier: Apache-2.0
// The device nodes that another process may open, tested in real containers: nodes restricted only
// by the device cgroup, only by their mode, or not at all.

#include "apps/gpushm/inspect/peer.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/files/file.hpp"
#include "gpushm/error.hpp"
#include "tests/support/container/container.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::cli::container_runtime;
using gpushm::cli::minors_of;
using gpushm::cli::peer_nodes;
using gpushm::cli::pid_of_container;
using gpushm::cli::tried_node;
using gpushm_testing::child;
using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::exited;
using gpushm_testing::temp_dir;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* nodes_inside = "/gpu-nodes";

/// nvidia0 is the device /dev/null, which every container may use; nvidia1 and nvidia7 are
/// /dev/fuse, which requires permission; nvidia2 is accessible to root only; nvidiactl and
/// nvidia-uvm are not GPUs.
class gpu_nodes {
 public:
  gpu_nodes() {
    make("nvidia0", 1, 3, 0666);
    make("nvidia1", 10, 229, 0666);
    make("nvidia2", 1, 3, 0600);
    make("nvidia7", 10, 229, 0666);
    make("nvidiactl", 1, 3, 0666);
    make("nvidia-uvm", 1, 3, 0666);
  }
  [[nodiscard]] const std::string& path() const { return directory_.path(); }

 private:
  void make(const std::string& name, unsigned major, unsigned minor, mode_t mode) const {
    const std::string path = directory_ / name;
    EXPECT_EQ(::mknod(path.c_str(), S_IFCHR | 0600, ::makedev(major, minor)), 0) << path;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  }
  temp_dir directory_{0755};
};

std::vector<std::string> texts(const peer_nodes& nodes) {
  std::vector<std::string> result;
  for (const tried_node& each : nodes.tried) {
    result.push_back(std::to_string(each.minor) + " " +
                     (each.error == 0 ? "opens" : ::strerrorname_np(each.error)));
  }
  return result;
}

class peer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    nodes_.emplace();
    children_before_ = children();
  }
  void TearDown() override { EXPECT_EQ(children(), children_before_); }

  [[nodiscard]] container_options waiting() const {
    container_options options;
    options.argv = {"/bin/sh", "-c", "echo ready; read line"};
    options.mounts = {{nodes_->path(), nodes_inside, true, false}};
    return options;
  }
  [[nodiscard]] static container start(const container_options& options) {
    auto box = container::start(options);
    box.wait_for_line("^ready$", seconds(20));
    return box;
  }
  /// The PIDs of this process's children.
  [[nodiscard]] static std::string children() {
    const std::string pid = std::to_string(::getpid());
    return gpushm::base::read_small_file("/proc/" + pid + "/task/" + pid + "/children")
        .value_or("");
  }
  /// The cgroups of this process.
  [[nodiscard]] static std::string own_cgroups() {
    return gpushm::base::read_small_file("/proc/self/cgroup").value_or("");
  }
  [[nodiscard]] static std::string runc_root_of(pid_t program) {
    // The program's parent is the runtime, whose arguments contain its state directory.
    const auto status =
        gpushm::base::read_small_file("/proc/" + std::to_string(program) + "/status").value_or("");
    const auto at = status.find("\nPPid:\t");
    const std::string parent =
        at == std::string::npos ? "" : status.substr(at + 7, status.find('\n', at + 7) - at - 7);
    const auto command = gpushm::base::read_small_file("/proc/" + parent + "/cmdline").value_or("");
    const auto root = command.find(std::string("--root\0", 7));
    return root == std::string::npos ? "" : std::string(command.c_str() + root + 7);
  }

  std::optional<gpu_nodes> nodes_;
  std::string children_before_;
};

TEST_F(peer, cgroup_and_modes_restrict_nodes) {
  auto box = start(waiting());
  const std::string before = own_cgroups();
  const auto minors = minors_of(box.host_pid(), nodes_inside);
  EXPECT_EQ(minors.problem, "");
  EXPECT_THAT(texts(minors), ElementsAre("0 opens", "1 EPERM", "2 EACCES", "7 EPERM"));
  ASSERT_TRUE(minors.minors);
  EXPECT_THAT(*minors.minors, ElementsAre(0));
  EXPECT_EQ(own_cgroups(), before);
}

TEST_F(peer, assigned_node_opens) {
  auto options = waiting();
  options.device_nodes = {{"/dev/fuse", ""}};
  auto box = start(options);
  const auto found = minors_of(box.host_pid(), nodes_inside);
  EXPECT_THAT(texts(found), ElementsAre("0 opens", "1 opens", "2 EACCES", "7 opens"))
      << found.problem;
  ASSERT_TRUE(found.minors);
  EXPECT_THAT(*found.minors, ElementsAre(0, 1, 7));
}

TEST_F(peer, root_is_limited_by_capabilities_and_cgroup) {
  auto options = waiting();
  options.uid = 0;
  options.gid = 0;
  auto box = start(options);
  // The owner may open nvidia2; the cgroup's restrictions also apply to root.
  EXPECT_THAT(texts(minors_of(box.host_pid(), nodes_inside)),
              ElementsAre("0 opens", "1 EPERM", "2 opens", "7 EPERM"));
}

TEST_F(peer, user_namespace) {
  if (const auto reason = gpushm_testing::why_no_containers(true)) {
    GTEST_SKIP() << *reason;
  }
  auto options = waiting();
  options.user_ns.emplace();
  options.uid = 0;  // owns nothing outside the namespace
  options.gid = 0;
  auto box = start(options);
  const auto found = minors_of(box.host_pid(), nodes_inside);
  EXPECT_THAT(texts(found), ElementsAre("0 opens", "1 EPERM", "2 EACCES", "7 EPERM"))
      << found.problem;
}

TEST_F(peer, without_nodes_none_open) {
  auto box = start(waiting());
  const auto minors = minors_of(box.host_pid());
  EXPECT_EQ(minors.problem, "");
  EXPECT_TRUE(minors.tried.empty());
  ASSERT_TRUE(minors.minors);
  EXPECT_TRUE(minors.minors->empty());
  const auto nowhere = minors_of(box.host_pid(), "/nonexistent");
  EXPECT_EQ(nowhere.problem, "");
  ASSERT_TRUE(nowhere.minors);
}

TEST_F(peer, special_files_do_not_block) {
  // A FIFO without a reader, and a directory.
  const temp_dir special_files(0755);
  ASSERT_EQ(::mkfifo((special_files / "nvidia3").c_str(), 0666), 0);
  ASSERT_EQ(::chmod((special_files / "nvidia3").c_str(), 0666), 0);
  ASSERT_EQ(::mkdir((special_files / "nvidia4").c_str(), 0755), 0);
  auto options = waiting();
  options.mounts = {{special_files.path(), nodes_inside, true, false}};
  auto box = start(options);
  const auto start = std::chrono::steady_clock::now();
  const auto found = minors_of(box.host_pid(), nodes_inside);
  EXPECT_LT(std::chrono::steady_clock::now() - start, gpushm_testing::wait_limit(seconds(4)));
  EXPECT_THAT(texts(found), ElementsAre("3 opens", "4 EISDIR")) << found.problem;
}

TEST_F(peer, similar_process_needs_no_privileges) {
  gpushm_testing::spawn_options options;
  options.argv = {"/bin/sh", "-c", "echo ready; read line"};
  auto process = child::start(options);
  process.wait_for_line("^ready$", seconds(20));
  const auto found = minors_of(process.pid(), nodes_->path());
  EXPECT_EQ(found.problem, "");
  ASSERT_TRUE(found.minors);
  EXPECT_EQ(found.tried.size(), 4U);
  EXPECT_EQ(found.tried.front(), (tried_node{0, 0}));
}

TEST_F(peer, missing_process_is_reported) {
  const auto found = minors_of(0x3fffffff);
  EXPECT_FALSE(found.minors);
  EXPECT_EQ(found.problem, "process 1073741823 does not exist");
}

TEST_F(peer, missing_privileges_are_reported) {
  auto box = start(waiting());
  const pid_t pid = box.host_pid();
  // A process of another user, without this process's privileges.
  const pid_t unprivileged = ::fork();
  if (unprivileged == 0) {
    const bool dropped =
        ::setresgid(65534, 65534, 65534) == 0 && ::setresuid(65534, 65534, 65534) == 0;
    const auto minors = minors_of(pid, nodes_inside);
    const bool reported =
        !minors.minors && minors.tried.empty() &&
        minors.problem.find("; run this as root, outside of containers") != std::string::npos &&
        (minors.problem.find("(EACCES)") != std::string::npos ||
         minors.problem.find("(EPERM)") != std::string::npos);
    ::_exit(dropped && reported ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(unprivileged, &status, 0), unprivileged);
  EXPECT_EQ(status, 0);
}

// ---- names of containers ----

TEST_F(peer, container_is_found_by_name) {
  auto box = start(waiting());
  const pid_t pid = box.host_pid();
  const std::string root = runc_root_of(pid);
  ASSERT_NE(root, "");
  std::vector<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    ids.push_back(entry.path().filename());
  }
  ASSERT_EQ(ids.size(), 1U);
  const std::string runc = gpushm_testing::find_runc().value().path;
  const container_runtime wrong{container_runtime::kind::oci, runc, "/nonexistent-root"};
  const container_runtime right{container_runtime::kind::oci, runc, root};
  EXPECT_EQ(pid_of_container(ids.front(), {wrong, right}), pid);

  // A container that has exited but is still listed.
  box.kill(SIGKILL);
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(128 + SIGKILL));
  try {
    static_cast<void>(pid_of_container(ids.front(), {right}));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::invalid_argument);
    EXPECT_THAT(failure.what(), HasSubstr("find container \"" + ids.front() + "\": "));
  }
}

TEST(peer_container, unknown_name_error_lists_runtimes) {
  const container_runtime failing{container_runtime::kind::oci, "/bin/false", "/some/root"};
  const container_runtime missing{container_runtime::kind::engine, "/nonexistent/podman", ""};
  try {
    static_cast<void>(pid_of_container("web; rm -rf /", {failing, missing}));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.code(), gpushm::errc::invalid_argument);
    EXPECT_STREQ(
        failure.what(),
        "find container \"web; rm -rf /\": no runtime here has this container; tried: /bin/false "
        "--root /some/root, /nonexistent/podman (use the name that its runtime lists (runc "
        "list, podman ps, crictl ps), or pass its process with --peer PID)");
  }
}

TEST(peer_container, name_that_is_an_option_is_refused) {
  const container_runtime echo{container_runtime::kind::oci, "/bin/echo", ""};
  for (const char* name : {"", "--help"}) {
    try {
      static_cast<void>(pid_of_container(name, {echo}));
      FAIL() << "no error";
    } catch (const gpushm::error& failure) {
      EXPECT_EQ(failure.cause(), "not a container's name");
    }
  }
}

TEST(peer_container, name_is_one_argument_and_not_a_shell_command) {
  // A program that succeeds only if it gets the name as one argument.
  const temp_dir directory(0755);
  const std::string program = directory / "fake-runtime";
  {
    std::ofstream script(program);
    script << "#!/bin/sh\necho 'a warning' >&2\n"
              "[ \"$#\" = 2 ] && [ \"$2\" = 'a b;$(x)' ] && echo '{\"status\":\"running\","
              "\"pid\": 4711}'\n";
  }
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  EXPECT_EQ(pid_of_container("a b;$(x)", {{container_runtime::kind::oci, program, ""}}), 4711);
}

TEST(peer_container, engine_is_queried_with_inspect) {
  const temp_dir directory(0755);
  const std::string program = directory / "fake-podman";
  {
    std::ofstream script(program);
    script << "#!/bin/sh\n[ \"$*\" = 'inspect --type container --format {\"pid\":{{.State.Pid}}} "
              "web' ] && echo '{\"pid\":'${FAKE_PID:-12}'}'\n";
  }
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  const container_runtime engine{container_runtime::kind::engine, program, ""};
  EXPECT_EQ(pid_of_container("web", {engine}), 12);
  ::setenv("FAKE_PID", "0", 1);
  try {
    static_cast<void>(pid_of_container("web", {engine}));
    FAIL() << "no error";
  } catch (const gpushm::error& failure) {
    EXPECT_EQ(failure.cause(), program + " reports that it is not running");
    EXPECT_EQ(failure.next_step(), "start it, then try again");
  }
  ::unsetenv("FAKE_PID");
}

}  // namespace
}  // namespace gpushm_tests
