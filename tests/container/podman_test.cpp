// SPDX-License-Identifier: Apache-2.0
// The distribution's podman, which contains the reference implementation of CDI, reads documents
// that gpushm generated: containers see exactly the described devices and share memory through the
// share device.

#include "tests/support/container/podman.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>

#include "containers/cdi/document/parse.hpp"
#include "tests/support/cdi/cdi_machine.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::podman;
using gpushm_testing::podman_options;
using gpushm_testing::run_program;
using gpushm_testing::scaled_timeout;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;
using lines = std::set<std::string>;

constexpr const char* share_device = "gpushm.dev/share=default";

// Uses only shell builtins: the image has no other program.
constexpr const char* print_all =
    "for file in /dev/* /dev/*/*; do [ ! -e \"$file\" ] || echo \"file $file\"; done\n"
    "export -p | while read -r word variable; do echo \"env $variable\"; done\n"
    "while read -r id parent device root place rest; do echo \"mount $place\"; done "
    "< /proc/self/mountinfo\n";

lines lines_of(const std::string& text) {
  lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    // The name differs in each container.
    if (line.rfind("env HOSTNAME=", 0) != 0) {
      lines.insert(line);
    }
  }
  return lines;
}

lines added_lines(const lines& partner, const lines& without) {
  lines added;
  std::set_difference(partner.begin(),
                      partner.end(),
                      without.begin(),
                      without.end(),
                      std::inserter(added, added.end()));
  return added;
}

/// The output of a container with `edits`.
void expect_of(const gpushm::cdi::edits& edits, lines& lines) {
  for (const auto& node : edits.device_nodes) {
    lines.insert("file " + node.path);
  }
  for (const auto& mount : edits.mounts) {
    lines.insert("mount " + mount.container_path);
  }
  for (const std::string& variable : edits.env) {
    const auto equals = variable.find('=');
    lines.insert("env " + variable.substr(0, equals) + "='" + variable.substr(equals + 1) + "'");
  }
}

class podman_cdi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_podman()) {
      GTEST_SKIP() << *reason;
    }
    machine_ = std::make_unique<cdi_machine>(false);
    engine_ = std::make_unique<podman>(machine_->driver_libraries());
  }

  [[nodiscard]] std::string document() const { return engine_->cdi_directory() + "/gpu.yaml"; }
  void generate(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--output", document()});
    const auto created = machine_->generate(more);
    ASSERT_EQ(created.status, exited(0)) << created.err;
  }

  /// A broker, and the document of its share device.
  void serve_and_share() {
    broker_ = machine_->serve_and_share(engine_->domains_directory(),
                                        engine_->cdi_directory() + "/share.yaml");
  }

  [[nodiscard]] podman_options with(std::vector<std::string> devices,
                                    std::vector<std::string> argv) const {
    podman_options options;
    options.devices = std::move(devices);
    options.argv = std::move(argv);
    options.mounts = machine_->memory();
    options.env = machine_->environment();
    return options;
  }
  [[nodiscard]] gpushm_testing::run_result run(const podman_options& options) const {
    return run_program(engine_->run(options), scaled_timeout(seconds(60)));
  }
  /// A role of the demo, in a container of an unprivileged user.
  [[nodiscard]] child role(std::vector<std::string> devices,
                           const std::string& name,
                           int ordinal) const {
    auto arguments = role_arguments(name, ordinal);
    arguments.insert(arguments.begin(), podman::command_inside());
    devices.emplace_back(share_device);
    auto options = with(std::move(devices), std::move(arguments));
    options.more = {"--user", "1000:1000", "--cap-drop", "all"};
    return child::start(engine_->run(options));
  }

  std::unique_ptr<podman> engine_;
  std::unique_ptr<cdi_machine> machine_;
  std::optional<gpushm::broker> broker_;
};

TEST_F(podman_cdi, container_has_exactly_described_edits) {
  generate();
  const auto loaded = gpushm::cdi::load(document());
  ASSERT_THAT(loaded.problems, ::testing::IsEmpty());
  const auto without = run(with({}, {"/bin/sh", "-c", print_all}));
  ASSERT_EQ(without.status, exited(0)) << without.err;
  for (const auto& device : loaded.content.devices) {
    SCOPED_TRACE(device.name);
    const auto done = run(with({"nvidia.com/gpu=" + device.name}, {"/bin/sh", "-c", print_all}));
    ASSERT_EQ(done.status, exited(0)) << done.err;
    lines expected;
    expect_of(loaded.content.changes, expected);
    expect_of(device.changes, expected);
    EXPECT_EQ(added_lines(lines_of(done.out), lines_of(without.out)), expected);
  }
}

TEST_F(podman_cdi, driver_is_found_by_library_name) {
  generate();
  const auto done = run(
      with({"nvidia.com/gpu=1"}, {podman::command_inside(), "doctor", "--no-selftest", "--json"}));
  EXPECT_THAT(done.out, HasSubstr("libcuda.so.1")) << done.err;
  EXPECT_THAT(done.out, HasSubstr(machine_->fake().gpus()[1].uuid));
}

TEST_F(podman_cdi, producer_and_consumer_share_across_two_gpus) {
  generate();
  serve_and_share();
  auto producer = role({"nvidia.com/gpu=0"}, "producer", 0);
  auto consumer = role({"nvidia.com/gpu=all"}, "consumer", 1);
  expect_roles_share(producer, consumer);
}

TEST_F(podman_cdi, missing_gpu_is_named) {
  generate();
  serve_and_share();
  auto producer = role({"nvidia.com/gpu=0"}, "producer", 0);
  auto consumer = role({"nvidia.com/gpu=1"}, "consumer", 0);
  EXPECT_EQ(consumer.wait_exit(scaled_timeout(seconds(60))), exited(1));
  EXPECT_THAT(consumer.text(gpushm_testing::stream::out),
              HasSubstr("\"code\":\"device_not_visible\""));
}

TEST_F(podman_cdi, old_engine_reads_lowered_document) {
  // A group ID needs version 0.7.0.
  const std::string node = machine_->fake().dev_root() + "/nvidia0";
  ASSERT_EQ(::chown(node.c_str(), 0, 44), 0);
  ASSERT_EQ(::chmod(node.c_str(), 0660), 0);
  generate();
  const auto newer = run(with({"nvidia.com/gpu=0"}, {"/bin/sh", "-c", ":"}));
  EXPECT_NE(newer.status, exited(0));
  EXPECT_THAT(newer.err, HasSubstr("unresolvable CDI devices nvidia.com/gpu=0"));

  const auto lowered = machine_->generate({"--spec-version", "0.5.0", "--output", document()});
  EXPECT_EQ(lowered.status, exited(0));
  EXPECT_THAT(lowered.err, HasSubstr("additionalGids"));
  const auto older = run(with({"nvidia.com/gpu=0"}, {"/bin/sh", "-c", ":"}));
  EXPECT_EQ(older.status, exited(0)) << older.err;
}

TEST_F(podman_cdi, killed_engine_leaves_nothing) {
  generate();
  auto process = child::start(
      engine_->run(with({"nvidia.com/gpu=0"}, {"/bin/sh", "-c", "echo ready; read -r line"})));
  process.wait_for_line("^ready$", scaled_timeout(seconds(60)));
  const std::string store = engine_->cdi_directory();
  process.kill(SIGKILL);
  EXPECT_EQ(process.wait_exit(scaled_timeout(seconds(30))), gpushm_testing::killed_by(SIGKILL));
  engine_.reset();
  EXPECT_FALSE(fs::exists(store));
  EXPECT_THAT(gpushm_testing::cgroups_named("gpushm-podman-" + std::to_string(::getpid())),
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace gpushm_tests
