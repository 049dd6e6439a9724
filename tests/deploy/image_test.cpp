// SPDX-License-Identifier: Apache-2.0
// scripts/image.sh creates an image of the built programs, without a registry; the programs run
// without privileges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "containers/cdi/document/parse.hpp"
#include "tests/support/container/podman.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::find_own_program;
using gpushm_testing::run_program;
using gpushm_testing::scaled_timeout;
using gpushm_testing::spawn_options;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;

namespace fs = std::filesystem;

constexpr const char* image = "localhost/gpushm-image-test:1";

// With separate storage and a separate /run, so that no other process on the machine is affected.
constexpr const char* wrapper =
    "#!/bin/sh\n"
    "exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc sh -c '\n"
    "mount -t tmpfs -o mode=755 none /run && exec \"$@\"' podman \"$REAL_PODMAN\" \\\n"
    "  --root \"$STORE/store\" --runroot \"$STORE/runroot\" --tmpdir \"$STORE/runroot\" \\\n"
    "  --storage-driver vfs \"$@\"\n";

constexpr const char* configuration =
    "[containers]\n"
    "default_ulimits = []\n"
    "[engine]\n"
    "cgroup_manager = \"cgroupfs\"\n"
    "events_logger = \"none\"\n"
    "runtime = \"runc\"\n";

class image_script : public ::testing::Test {
 protected:
  void SetUp() override {
    script_ = fs::path(GPUSHM_SOURCE_DIR) / "scripts/image.sh";
    if (!fs::exists(script_)) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    if (const auto reason = gpushm_testing::why_no_podman()) {
      GTEST_SKIP() << *reason;
    }
    has_agent_ =
        find_own_program("gpushmd").has_value() && find_own_program("gpushm-cdi-hook").has_value();
    fs::create_directory(directory_ / "bin");
    std::ofstream(directory_ / "bin/podman") << wrapper;
    fs::permissions(directory_ / "bin/podman", fs::perms::owner_all);
    std::ofstream(directory_ / "containers.conf") << configuration;
  }

  void TearDown() override {
    // podman leaves the cgroups of ended containers; the kernel allows their removal slightly
    // later.
    const auto gone = [] {
      bool left = false;
      for (const std::string& cgroup : gpushm_testing::cgroups_named(cgroup_name())) {
        std::error_code ignored;
        for (const auto& inner : fs::directory_iterator(cgroup, ignored)) {
          if (inner.is_directory(ignored)) {
            ::rmdir(inner.path().c_str());
          }
        }
        left = ::rmdir(cgroup.c_str()) != 0 || left;
      }
      return !left;
    };
    EXPECT_TRUE(gpushm_testing::eventually(gone, scaled_timeout(seconds(10))));
  }

  [[nodiscard]] static std::string cgroup_name() {
    return "gpushm-image-" + std::to_string(::getpid());
  }
  [[nodiscard]] spawn_options with_own_podman(std::vector<std::string> argv) const {
    spawn_options options;
    options.argv = std::move(argv);
    options.env = {{"PATH", (directory_ / "bin") + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
                   {"REAL_PODMAN", gpushm_testing::find_in_path("podman").value()},
                   {"STORE", directory_ / ""},
                   {"CONTAINERS_CONF", directory_ / "containers.conf"},
                   {"LD_LIBRARY_PATH", ""}};
    return options;
  }
  [[nodiscard]] gpushm_testing::run_result run(std::vector<std::string> argv) const {
    return run_program(with_own_podman(std::move(argv)), scaled_timeout(seconds(120)));
  }
  [[nodiscard]] gpushm_testing::run_result make(std::vector<std::string> more = {}) const {
    const std::string tree = gpushm_testing::tree_of_program(gpushm_testing::own_program("gpushm"));
    std::vector<std::string> argv{script_.string(), tree, "--name", image};
    if (!has_agent_) {
      argv.emplace_back("--without-agent");
    }
    argv.insert(argv.end(), more.begin(), more.end());
    return run(std::move(argv));
  }
  /// A container of the image with the fewest possible privileges. Empty `program`: the entry
  /// point.
  [[nodiscard]] spawn_options inside(const std::string& program,
                                     const std::vector<std::string>& options,
                                     const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv{
        directory_ / "bin/podman", "run", "--rm", "--network", "none", "--pull", "never"};
    argv.insert(argv.end(), {"--user", "1000:1000", "--read-only", "--cap-drop", "all"});
    argv.insert(argv.end(), {"--security-opt", "no-new-privileges"});
    argv.insert(argv.end(), {"--cgroup-parent", "/" + cgroup_name()});
    if (!program.empty()) {
      argv.insert(argv.end(), {"--entrypoint", program});
    }
    argv.insert(argv.end(), options.begin(), options.end());
    argv.emplace_back(image);
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return with_own_podman(std::move(argv));
  }
  [[nodiscard]] gpushm_testing::run_result run_inside(
      const std::string& program, const std::vector<std::string>& arguments) const {
    return run_program(inside(program, {}, arguments), scaled_timeout(seconds(120)));
  }

  fs::path script_;
  bool has_agent_ = false;
  gpushm_testing::temp_dir directory_{0755};
};

TEST_F(image_script, programs_of_image_run) {
  const auto created = make({"--archive", directory_ / "image.tar"});
  ASSERT_EQ(created.status, exited(0)) << created.err;
  EXPECT_THAT(created.out,
              MatchesRegex("image: .*/image\\.tar, [0-9]+ MiB\n"
                           "image: localhost/gpushm-image-test:1, [0-9]+ MiB\n"));

  const auto entry = run_inside("", {"--version"});
  EXPECT_EQ(entry.status, exited(0)) << entry.err;
  EXPECT_THAT(entry.out, HasSubstr("0.2.0"));
  const auto command = run_inside("gpushm", {"version"});
  EXPECT_EQ(command.out, "gpushm 0.2.0\n") << command.err;
  const auto pair = run_inside("gpushm-pair", {"--version"});
  EXPECT_EQ(pair.out, "gpushm-pair 0.2.0\n") << pair.err;
  // The libraries that the agent installs on nodes.
  const auto preloaded = run_inside("gpushm", {"run", "--", "/opt/gpushm/bin/gpushm", "version"});
  EXPECT_EQ(preloaded.out, "gpushm 0.2.0\n") << preloaded.err;
  EXPECT_EQ(preloaded.err, "");
  // In the agent's container, the node's /usr replaces the image's.
  fs::create_directory(directory_ / "nothing");
  const auto bare = run_program(
      inside("gpushm", {"--volume", (directory_ / "nothing") + ":/usr:ro"}, {"version"}),
      scaled_timeout(seconds(120)));
  EXPECT_EQ(bare.out, "gpushm 0.2.0\n") << bare.err;
  // The image has no shell, which an intruder could start.
  EXPECT_NE(run_inside("/bin/sh", {"-c", ":"}).status, exited(0));
}

// The pods of deploy/examples, without a cluster and a GPU.
TEST_F(image_script, pair_shares_memory_between_containers) {
  const auto created = make();
  ASSERT_EQ(created.status, exited(0)) << created.err;
  const std::string domain = directory_ / "domain";
  fs::create_directory(domain);
  spawn_options serve;
  serve.argv = {gpushm_testing::own_program("gpushm"),
                "serve",
                "--socket",
                domain + "/socket",
                "--mode",
                "0666"};
  auto broker = child::start(serve);
  broker.wait_for_line("serving domain", scaled_timeout(seconds(30)));
  const std::vector<std::string> mounted{"--volume", domain + ":/run/gpushm/d/default:ro"};
  auto consumer = child::start(inside("gpushm-pair", mounted, {"consumer"}));
  auto producer = child::start(
      inside("gpushm-pair", mounted, {"producer", "--device", "host", "--size", "8MiB"}));
  EXPECT_EQ(producer.wait_exit(scaled_timeout(seconds(60))), exited(0));
  EXPECT_EQ(consumer.wait_exit(scaled_timeout(seconds(60))), exited(0));
  EXPECT_EQ(producer.text(gpushm_testing::stream::out),
            "Producer: connected to the domain \"default\"\n"
            "Producer: published \"demo/pair\": 8 MiB on host, backend host\n"
            "Producer: Answer verification PASSED (8388608 bytes checked)\n");
  EXPECT_EQ(consumer.text(gpushm_testing::stream::out),
            "Consumer: connected to the domain \"default\"\n"
            "Consumer: waiting for \"demo/pair\"\n"
            "Consumer: opened \"demo/pair\": 8 MiB on host, backend host\n"
            "Consumer: Data verification PASSED (8388608 bytes checked)\n"
            "Consumer: wrote its answer\n");
}

// With the node's /usr, which has the driver, mounted at /usr and nothing else of the node, as in
// the overlays with GPUs. The paths in the agent's document must be paths of the node.
TEST_F(image_script, agent_finds_driver_of_node) {
  if (!has_agent_) {
    GTEST_SKIP() << "this build has no gpushmd";
  }
  const auto created = make();
  ASSERT_EQ(created.status, exited(0)) << created.err;
  const gpushm::fake::fake_gpus gpus;
  const std::string libraries = directory_ / "usr/lib/x86_64-linux-gnu";
  fs::create_directories(libraries);
  for (const std::string name : {"libcuda.so", "libnvidia-ml.so"}) {
    const std::string file = name + ".580.82.07";
    fs::copy_file(fs::path(gpushm::fake::fake_driver_directory()) / (name + ".1"),
                  fs::path(libraries) / file);
    fs::create_symlink(file, fs::path(libraries) / (name + ".1"));
  }
  std::vector<std::string> options{"--user", "0:0", "--privileged"};
  for (const auto& [host, container] : std::vector<std::pair<std::string, std::string>>{
           {directory_ / "usr", "/usr:ro"},
           {gpus.root(), gpus.root()},
           {directory_ / "cdi", "/var/run/cdi"},
           {directory_ / "run", "/run/gpushm"},
           {directory_ / "state", "/var/lib/kubelet/plugins/gpushm.dev"},
           {directory_ / "plugins", "/var/lib/kubelet/device-plugins"}}) {
    fs::create_directories(host);
    options.emplace_back("--volume");
    options.push_back(host + ":" + container);
  }
  for (const std::string& variable :
       {std::string("LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/lib"),
        "GPUSHM_FAKE_GPU_ROOT=" + gpus.root(),
        "GPUSHM_PROC_ROOT=" + gpus.proc_root(),
        "GPUSHM_DEV_ROOT=" + gpus.dev_root()}) {
    options.insert(options.end(), {"--env", variable});
  }
  auto agent = child::start(inside("gpushmd",
                                   options,
                                   {"--dra=off",
                                    "--dev-root=" + gpus.root(),
                                    "--proc-root=" + gpus.proc_root(),
                                    "--listen=off"}));
  const std::string document = directory_ / "cdi/gpushm-device-plugin.json";
  EXPECT_TRUE(
      gpushm_testing::eventually([&] { return fs::exists(document); }, scaled_timeout(seconds(60))))
      << agent.text(gpushm_testing::stream::err);
  const auto loaded = gpushm::cdi::load(document);
  ASSERT_THAT(loaded.problems, IsEmpty());
  ASSERT_EQ(loaded.content.devices.size(), 1U);
  EXPECT_EQ(loaded.content.devices[0].name, gpus.gpus().at(0).uuid);
  std::vector<std::string> mounted;
  for (const auto& mount : loaded.content.changes.mounts) {
    mounted.push_back(mount.host_path);
  }
  EXPECT_THAT(mounted,
              IsSupersetOf({"/usr/lib/x86_64-linux-gnu/libcuda.so.580.82.07",
                            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.82.07"}));
  for (const auto& hook : loaded.content.changes.hooks) {
    EXPECT_EQ(hook.path, "/var/lib/kubelet/plugins/gpushm.dev/gpushm-cdi-hook");
  }
  EXPECT_TRUE(fs::exists(directory_ / "state/gpushm-cdi-hook"));
  agent.kill(SIGKILL);
  agent.wait_exit(scaled_timeout(seconds(30)));
}

TEST_F(image_script, missing_program_and_unknown_option_are_reported) {
  fs::create_directories(directory_ / "empty/apps");
  fs::create_directories(directory_ / "empty/deploy");
  const auto created = run({script_.string(), directory_ / "empty", "--name", image});
  EXPECT_EQ(created.status, exited(1));
  EXPECT_EQ(
      created.err,
      "image: no gpushmd in " + (directory_ / "empty") + "; build it, or use --without-agent\n");
  const auto unknown = run({script_.string(), directory_ / "empty", "--nmae", image});
  EXPECT_EQ(unknown.status, exited(2));
  EXPECT_EQ(unknown.err, "image: unknown option --nmae\n");
}

}  // namespace
}  // namespace gpushm_tests
