// SPDX-License-Identifier: Apache-2.0
// The unit of gpushm-brokerd with a real systemd, which boots in its own namespaces: systemd's
// descriptor store keeps what the broker stores through a restart and through SIGKILL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <system_error>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr const char* systemd = "/usr/lib/systemd/systemd";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Enters a control group of its own ($2) in every hierarchy, and starts the rest in namespaces: so
/// that systemd cannot reach the machine's groups.
constexpr const char* enter = R"sh(
for each in $(awk '$3 ~ /^cgroup/ && $2 !~ /cpuset/ {print $2}' /proc/self/mounts); do
  mkdir "$each/$2" && echo $$ > "$each/$2/cgroup.procs" || exit 9
done
exec unshare --cgroup --mount --pid --fork --kill-child bash -c "$3" boot "$1"
)sh";

/// Becomes systemd, as the first process of its PID namespace. $1: the directory with units.
constexpr const char* boot = R"sh(
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
fi
mkdir -p /run/systemd/system
cp -r "$1"/. /run/systemd/system/
for file in passwd group shadow gshadow ld.so.cache; do
  cp /etc/$file /run/$file
  mount --bind /run/$file /etc/$file
done
grep -q '^gpushm:' /etc/group || echo 'gpushm:x:64000:' >> /etc/group
grep -q '^gpushm:' /etc/passwd || echo 'gpushm:x:64000:64000::/:/usr/sbin/nologin' >> /etc/passwd
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin )sh";

/// Waits until systemd has started service $1 again, and it is ready: its process is not $2. One
/// reading of all states each time: between two of them, process $2 can become "none".
constexpr const char* wait_for_another = R"sh(
wait_for_another() {
  for i in $(seq 400); do
    case "$(systemctl show "$1" -p ActiveState -p MainPID | sort | tr '\n' ' ')" in
      "ActiveState=active MainPID=$2 ") ;;
      "ActiveState=active MainPID="*) return 0 ;;
    esac
    sleep 0.05
  done
  echo "$1 was not started again"
  return 1
}
)sh";

/// What is done once the broker runs; $1 is the command `gpushm`.
constexpr const char* check = R"sh(
socket=/run/gpushm/d/default/socket
pid() { systemctl show gpushm-brokerd --value -p MainPID; }
stored() { systemctl show gpushm-brokerd --value -p NFileDescriptorStore; }
first=$(stored)
"$1" create weights --device host --size 1MiB --fill 42 --lifetime persistent --socket $socket
"$1" open weights --json --checksum --socket $socket
before=$(pid)
systemctl restart gpushm-brokerd
"$1" open weights --json --checksum --socket $socket
[ "$before" != "$(pid)" ] && echo replaced by restart
for i in $(seq 12); do  # systemd's own limit is 5 starts in 10 seconds
  before=$(pid)
  systemctl kill -s KILL gpushm-brokerd
  wait_for_another gpushm-brokerd "$before" || exit
done
"$1" open weights --json --checksum --socket $socket
echo replaced after SIGKILL
# A wrong setting: many starts fail, the segment stays, and the first start with another setting has it.
wrong=/run/systemd/system/gpushm-brokerd.service.d/wrong.conf
printf '[Service]\nEnvironment=GPUSHM_BROKERD_DOMAINS=a/b\n' > $wrong
systemctl daemon-reload
systemctl restart gpushm-brokerd && echo "a wrong setting was accepted"
restarts() { systemctl show gpushm-brokerd --value -p NRestarts; }
for i in $(seq 400); do [ "$(restarts)" -ge 12 ] && break; sleep 0.05; done
rm $wrong
systemctl daemon-reload
wait_for_another gpushm-brokerd 0 && echo "failed starts: $(restarts)"
"$1" open weights --json --checksum --socket $socket
echo "with the segment: $(($(stored) > $first))"
"$1" rm weights --socket $socket
for i in $(seq 200); do [ "$(stored)" = "$first" ] && break; sleep 0.05; done
echo "left in the store: $(($(stored) - $first))"
stat -c '%a %U %n' /run/gpushm/private /run/gpushm/private/socket /run/gpushm/d
systemctl show gpushm-brokerd -p Result -p NRestarts
)sh";

/// What is done once broker and agent run; $1 is the command `gpushm`.
constexpr const char* check_agent = R"sh(
socket=/run/gpushm/d/team/socket
pid() { systemctl show gpushmd --value -p MainPID; }
for i in $(seq 200); do [ -S $socket ] && break; sleep 0.05; done
"$1" create weights --device host --size 1MiB --fill 42 --lifetime persistent --socket $socket
for i in $(seq 6); do  # systemd's own limit is 5 starts in 10 seconds
  before=$(pid)
  systemctl kill -s KILL gpushmd
  wait_for_another gpushmd "$before" || exit
done
echo agent started again
systemctl restart gpushm-brokerd
"$1" open weights --json --checksum --socket $socket && echo segment is there
systemctl show gpushmd -p Result -p ActiveState
)sh";

/// What is done once the service runs on a machine without the node $uvm: then that appears, the
/// service is killed, the document is removed, and the driver gets another library.
constexpr const char* check_refresh = R"sh(
document=/var/run/cdi/nvidia.com-gpu.yaml
pid() { systemctl show gpushm-cdi-refresh --value -p MainPID; }
there() { for i in $(seq 400); do [ -s $document ] && return; sleep 0.05; done; echo "no document"; exit; }
for i in $(seq 400); do grep -q "missing device node $uvm" "$log" && break; sleep 0.05; done
[ -e $document ] && echo "a document without a control node"
mknod -m 666 $uvm c 1 3
there
grep -c "name: " $document
for i in $(seq 3); do
  before=$(pid)
  systemctl kill -s KILL gpushm-cdi-refresh
  wait_for_another gpushm-cdi-refresh "$before" || exit
done
rm $document
there
echo written again
cp $library $(dirname $library)/libnvidia-new.so.${library##*.so.}
for i in $(seq 400); do grep -q libnvidia-new $document && echo followed the driver && break; sleep 0.05; done
systemctl show gpushm-cdi-refresh -p Type -p Restart -p ActiveState
systemctl stop gpushm-cdi-refresh
systemctl show gpushm-cdi-refresh -p Result
)sh";

class booted : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "only root can create the namespaces";
    }
    if (!fs::exists(systemd) || !gpushm_testing::find_in_path("systemctl")) {
      GTEST_SKIP() << "no systemd";
    }
    if (gpushm::base::under_sanitizer) {
      GTEST_SKIP() << "the unit's limits are too narrow for a sanitizer";
    }
    fs::create_directory(units_);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(units_ + "/" + name).parent_path());
    std::ofstream(units_ + "/" + name) << text;
  }
  /// The unit as installed, but with the program of the build, and with `more` lines in its
  /// sections Unit and Service.
  void write_unit(const std::string& name,
                  const std::string& program,
                  const std::string& more_of_unit = {},
                  const std::string& more = {}) const {
    const std::string unit = text_of(std::string(GPUSHM_UNIT_DIR) + "/" + name);
    const std::string installed = std::string(GPUSHM_UNIT_BIN_DIR) + "/" + program;
    ASSERT_THAT(unit, HasSubstr(installed));
    write(name,
          std::regex_replace(unit, std::regex(installed), gpushm_testing::own_program(program)));
    // No other units of the machine; the build may be in a home directory.
    write(name + ".d/test.conf",
          "[Unit]\nDefaultDependencies=no\n" + more_of_unit +
              "[Service]\nProtectHome=no\nPrivateTmp=no\nStandardError=append:" + services_log_ +
              "\n" + more);
  }
  /// Boots, starts `services`, runs the script, and returns what that prints. Nothing: there is
  /// no control group to boot in. `details`: all output.
  [[nodiscard]] std::optional<std::string> run(const std::string& script,
                                               const std::string& services,
                                               std::string& details) const {
    std::ofstream(directory_ / "check.sh") << wait_for_another << script;
    write("check.service",
          "[Unit]\nDefaultDependencies=no\nWants=" + services + "\nAfter=" + services +
              "\n[Service]\nType=oneshot\nTimeoutStartSec=60\nExecStart=/bin/bash " +
              directory_ / "check.sh" + " " + gpushm_testing::own_program("gpushm") +
              "\nExecStopPost=/bin/systemctl --force --force poweroff\nStandardOutput=append:" +
              directory_ / "log" + "\nStandardError=append:" + directory_ / "log" + "\n");
    write("test.target", "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=check.service\n");
    gpushm_testing::spawn_options options;
    options.argv = {"bash",
                    "-c",
                    enter,
                    "enter",
                    units_,
                    group_,
                    std::string(boot) + systemd + " --unit=test.target --log-target=console"};
    const auto done = gpushm_testing::run_program(options, gpushm_testing::scaled_timeout(120s));
    details = done.out + done.err + text_of(services_log_);
    if (done.status == gpushm_testing::exited(9)) {
      return std::nullopt;
    }
    return text_of(directory_ / "log");
  }

  void TearDown() override {
    EXPECT_TRUE(gpushm_testing::eventually([&] { return remove_groups(); }, 20s));
  }
  /// Returns whether none is left.
  [[nodiscard]] bool remove_groups() const {
    bool left = false;
    for (const std::string& group : gpushm_testing::cgroups_named(group_)) {
      std::vector<std::string> groups{group};
      std::error_code ignored;
      for (const auto& each : fs::recursive_directory_iterator(group, ignored)) {
        if (each.is_directory(ignored)) {
          groups.push_back(each.path());
        }
      }
      std::sort(groups.begin(), groups.end(), std::greater<>());  // the innermost first
      for (const std::string& each : groups) {
        left = ::rmdir(each.c_str()) != 0 || left;
      }
    }
    return !left;
  }

  const std::string group_ = "gpushm-systemd-" + std::to_string(::getpid());
  gpushm_testing::temp_dir directory_{0755};
  const std::string units_ = directory_ / "units";
  const std::string services_log_ = directory_ / "services.log";  ///< what the services say
};

TEST_F(booted, keeps_segments_through_restart_and_sigkill) {
  write_unit("gpushm-brokerd.service", "gpushm-brokerd");
  std::string details;
  const auto ran = run(check, "gpushm-brokerd.service", details);
  if (!ran) {
    GTEST_SKIP() << "no control group of its own: " << details;
  }
  const std::string& log = *ran;
  SCOPED_TRACE(log + details);
  EXPECT_THAT(log, HasSubstr("replaced by restart\n"));
  EXPECT_THAT(log, HasSubstr("replaced after SIGKILL\n"));
  EXPECT_THAT(log, Not(HasSubstr("a wrong setting was accepted")));
  EXPECT_THAT(log, ContainsRegex("failed starts: [1-9][0-9]\n"));
  EXPECT_THAT(log, HasSubstr("with the segment: 1\n"));
  EXPECT_THAT(log, HasSubstr("left in the store: 0\n"));
  EXPECT_THAT(log, HasSubstr("750 gpushm /run/gpushm/private\n"));
  EXPECT_THAT(log, HasSubstr("660 gpushm /run/gpushm/private/socket\n"));
  EXPECT_THAT(log, HasSubstr("700 gpushm /run/gpushm/d\n"));
  EXPECT_THAT(log, HasSubstr("Result=success\n"));
  // The same contents each time.
  const std::regex sum(R"re("crc32c": ?"([0-9a-f]+)")re");
  std::vector<std::string> sums;
  for (std::sregex_iterator at(log.begin(), log.end(), sum); at != std::sregex_iterator(); ++at) {
    sums.push_back((*at)[1]);
  }
  ASSERT_EQ(sums.size(), 4U);
  EXPECT_THAT(sums, ::testing::Each(sums.front()));
}

TEST_F(booted, agent_is_started_again_and_costs_nothing) {
  if (!fs::exists(gpushm_testing::own_program("gpushmd"))) {
    GTEST_SKIP() << "gpushmd is not built";
  }
  write_unit("gpushm-brokerd.service", "gpushm-brokerd");
  // No kubelet and no GPU here: the agent opens domains.
  write_unit("gpushmd.service",
             "gpushmd",
             "ConditionPathExists=\n",
             "Environment=GPUSHMD_DEVICE_PLUGIN=off GPUSHMD_DRA=off GPUSHMD_GPUS=off "
             "GPUSHMD_LISTEN=off GPUSHMD_DOMAINS=team GPUSHMD_STATE_DIR=" +
                 directory_ / "agent" + "\n");
  std::string details;
  const auto log = run(check_agent, "gpushm-brokerd.service gpushmd.service", details);
  if (!log) {
    GTEST_SKIP() << "no control group of its own: " << details;
  }
  SCOPED_TRACE(*log + details);
  EXPECT_THAT(*log, HasSubstr("agent started again\n"));
  EXPECT_THAT(*log, HasSubstr("segment is there\n"));
  EXPECT_THAT(*log, HasSubstr("Result=success\n"));
  EXPECT_THAT(*log, HasSubstr("ActiveState=active\n"));
}

TEST_F(booted, keeps_the_cdi_document_up_to_date_from_boot_on) {
  if (gpushm_tests::driver_tree_names().empty() ||
      !gpushm_tests::can_make_nodes(directory_.path())) {
    GTEST_SKIP() << "no source tree with drivers, or no device nodes can be made";
  }
  const auto driver = gpushm_tests::make_driver_tree("debian-12-535", directory_ / "driver");
  const gpushm_tests::gpu_tree gpus(directory_ / "gpus",
                                    gpushm_tests::plain_gpus(2),
                                    driver.module_version,
                                    driver.own_dev ? driver.root + "/dev" : std::string());
  const std::string uvm = gpus.dev() + "/nvidia-uvm";
  fs::remove(uvm);
  // The unit's own arguments, and the tree.
  const std::string unit = text_of(std::string(GPUSHM_UNIT_DIR) + "/gpushm-cdi-refresh.service");
  std::smatch start;
  ASSERT_TRUE(std::regex_search(unit, start, std::regex("\nExecStart=\\S+/gpushm( .*)")));
  std::string service =
      "RestartSec=50ms\nExecStart=\nExecStart=" + gpushm_testing::own_program("gpushm") +
      start[1].str() + " --interval 50ms --driver-root " + driver.root + "\n";
  for (const auto& [name, value] : gpus.environment()) {
    service += "Environment=\"" + name + "=" + value + "\"\n";
  }
  write_unit("gpushm-cdi-refresh.service", "gpushm", {}, service);
  std::string library;
  for (const auto& each : fs::recursive_directory_iterator(driver.root)) {
    if (each.is_regular_file() && !each.is_symlink() &&
        each.path().filename().string().starts_with("libcuda.so.")) {
      library = each.path();
    }
  }
  std::string details;
  const auto log =
      run("uvm=" + uvm + "\nlibrary=" + library + "\nlog=" + services_log_ + "\n" + check_refresh,
          "gpushm-cdi-refresh.service",
          details);
  if (!log) {
    GTEST_SKIP() << "no control group of its own: " << details;
  }
  SCOPED_TRACE(*log + details);
  EXPECT_THAT(*log, ::testing::StartsWith("5\n")) << "devices of the first document: 0, 1, all";
  EXPECT_THAT(*log, HasSubstr("written again\n"));
  EXPECT_THAT(*log, HasSubstr("followed the driver\n"));
  EXPECT_THAT(*log, HasSubstr("Type=exec\n"));
  EXPECT_THAT(*log, HasSubstr("Restart=on-failure\n"));
  EXPECT_THAT(*log, HasSubstr("ActiveState=active\n"));
  EXPECT_THAT(*log, HasSubstr("Result=success\n"));
}

/// systemd's own estimate of what a unit could do, in tenths of 0 (nothing) to 10. It was 83 for
/// the agent before it was confined.
TEST_F(booted, units_are_confined) {
  const auto analyze = gpushm_testing::find_in_path("systemd-analyze");
  if (!analyze) {
    GTEST_SKIP() << "no systemd-analyze";
  }
  const std::pair<const char*, const char*> units[] = {{"gpushm-brokerd.service", "24"},
                                                       {"gpushmd.service", "25"},
                                                       {"gpushm-cdi-refresh.service", "30"}};
  for (const auto& [name, most] : units) {
    gpushm_testing::spawn_options options;
    options.argv = {*analyze,
                    "security",
                    "--no-pager",
                    "--offline=true",
                    "--threshold",
                    most,
                    std::string(GPUSHM_UNIT_DIR) + "/" + name};
    const auto done = gpushm_testing::run_program(options, gpushm_testing::scaled_timeout(60s));
    if (done.err.find("unrecognized option") != std::string::npos) {
      GTEST_SKIP() << "systemd-analyze is older than 250";
    }
    EXPECT_EQ(done.status, gpushm_testing::exited(0)) << name << done.out << done.err;
  }
  for (const auto& [name, most] : units) {
    const std::string unit = text_of(std::string(GPUSHM_UNIT_DIR) + "/" + name);
    EXPECT_THAT(unit, HasSubstr("\nMemoryMax="));
    EXPECT_THAT(unit, HasSubstr("\nTasksMax="));
  }
}

/// systemd's own check of all units, with the programs in the places that they name.
TEST_F(booted, units_are_valid) {
  const auto analyze = gpushm_testing::find_in_path("systemd-analyze");
  if (!analyze) {
    GTEST_SKIP() << "no systemd-analyze";
  }
  gpushm_testing::spawn_options options;
  options.argv = {*analyze, "verify", "--man=no", "--recursive-errors=no"};
  for (const auto& each : fs::directory_iterator(GPUSHM_UNIT_DIR)) {
    const std::string name = each.path().filename();
    if (name == "gpushm.conf") {
      continue;
    }
    std::string text = text_of(each.path());
    for (const char* const program : {"gpushm-brokerd", "gpushm-keeper", "gpushmd", "gpushm"}) {
      text = std::regex_replace(
          text,
          std::regex("=" + std::string(GPUSHM_UNIT_BIN_DIR) + "/" + program + "\\b(?!-)"),
          "=/bin/true");
    }
    write(name, text);
    options.argv.push_back(units_ + "/" + name);
  }
  ASSERT_GT(options.argv.size(), 6U);
  const auto done = gpushm_testing::run_program(options, gpushm_testing::scaled_timeout(60s));
  EXPECT_EQ(done.status, gpushm_testing::exited(0)) << done.err;
  EXPECT_EQ(done.err, "");
}

}  // namespace
