// SPDX-License-Identifier: Apache-2.0
// The programs of examples/ that exchange tickets, with each role in a separate process: in one PID
// namespace, and both as PID 1 of two, where raw CUDA IPC handles fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/process/signals.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::stream;
using std::chrono::seconds;

enum class placement : std::uint8_t { together, each_pid_1 };
void PrintTo(placement value, std::ostream* to) {
  *to << (value == placement::together ? "together" : "each PID 1");
}

/// The process that `unshare --fork` started; 0 if there is none.
pid_t only_child_of(pid_t parent) {
  const std::string task = std::to_string(parent);
  pid_t examples = 0;
  std::ifstream("/proc/" + task + "/task/" + task + "/children") >> examples;
  return examples;
}

class examples : public ::testing::TestWithParam<placement> {
 protected:
  void SetUp() override {
    for (const char* name : {"exchange_file", "exchange_posix_shm", "exchange_ranks"}) {
      ASSERT_TRUE(std::filesystem::exists(program(name))) << program(name);
    }
    if (GetParam() != placement::each_pid_1) {
      return;
    }
    if (::geteuid() != 0) {
      GTEST_SKIP() << "PID namespaces require root";
    }
    const auto unshare = gpushm_testing::find_in_path("unshare");
    if (!unshare) {
      GTEST_SKIP() << "unshare(1) is not installed";
    }
    unshare_ = {*unshare, "--pid", "--fork", "--kill-child", "--mount-proc"};
    gpushm_testing::spawn_options probe;
    probe.argv = unshare_;
    probe.argv.emplace_back("true");
    const auto probed = gpushm_testing::run_program(probe, seconds(30));
    if (!probed.status.success()) {
      GTEST_SKIP() << "cannot create a PID namespace: " << probed.err;
    }
  }
  void TearDown() override {
    if (fake_.mounted()) {
      EXPECT_EQ(fake_.used_bytes(0), 0U);
    }
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
    EXPECT_FALSE(std::filesystem::exists("/dev/shm" + shared_memory_name()));
  }

  [[nodiscard]] static std::string program(const std::string& name) {
    return gpushm_testing::find_own_program("example_" + name)
        .value_or(GPUSHM_EXAMPLES_DIR "/example_" + name);
  }
  /// Runs examples/NAME.cpp as one role. The first line of output is its PID in its PID namespace.
  [[nodiscard]] gpushm_testing::spawn_options command(const std::string& name,
                                                      std::vector<std::string> arguments,
                                                      bool with_gpu = true) const {
    gpushm_testing::spawn_options options;
    options.argv = unshare_;
    options.argv.insert(options.argv.end(),
                        {"/bin/sh", "-c", "echo pid $$; exec \"$0\" \"$@\"", program(name)});
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    if (with_gpu) {
      options.env = fake_.environment();
    }
    return options;
  }
  [[nodiscard]] child start(const std::string& name, std::vector<std::string> arguments) const {
    return child::start(command(name, std::move(arguments)));
  }
  /// Expects `line` as the only output of the program.
  static void expect_success(child& process, const std::string& line) {
    EXPECT_EQ(process.wait_exit(seconds(90)), exited(0)) << process.output().all_output();
    EXPECT_EQ(process.text(stream::err), "");
    const std::string& text = process.text(stream::out);
    const auto end_of_first = text.find('\n');
    ASSERT_NE(end_of_first, std::string::npos);
    EXPECT_EQ(text.substr(end_of_first + 1), line + "\n");
    if (GetParam() == placement::each_pid_1) {
      EXPECT_EQ(text.substr(0, end_of_first), "pid 1");
    } else {
      EXPECT_NE(text.substr(0, end_of_first), "pid 1");
    }
  }

  [[nodiscard]] static std::string shared_memory_name() {
    return "/gpushm-examples-test-" + std::to_string(::getpid());
  }

  gpushm_testing::temp_dir directory_;
  gpushm::fake::fake_gpus fake_;
  std::vector<std::string> unshare_;
};

TEST_P(examples, file) {
  const std::string file = directory_ / "tensor";
  auto importer = start("exchange_file", {"import", file});
  auto exporter = start("exchange_file", {"export", file});
  expect_success(importer, "the sum of 1048576 bytes is 3145728");
  expect_success(exporter, "exported 1048576 bytes of GPU memory");
}

TEST_P(examples, file_without_gpu) {
  const std::string file = directory_ / "tensor";
  // A driver without GPUs hides those of this machine.
  const auto without_gpu = [&](const std::string& role) {
    auto options = command("exchange_file", {role, file});
    options.env.emplace_back("GPUSHM_FAKE_FAIL", "cuInit:*=100");
    return child::start(options);
  };
  auto importer = without_gpu("import");
  auto exporter = without_gpu("export");
  expect_success(importer, "the sum of 1048576 bytes is 3145728");
  expect_success(exporter, "exported 1048576 bytes of host memory");
}

TEST_P(examples, posix_shared_memory) {
  const std::string name = shared_memory_name();
  auto importer = start("exchange_posix_shm", {"import", name});
  auto exporter = start("exchange_posix_shm", {"export", name});
  expect_success(importer, "the sum of 1048576 bytes is 5242880");
  expect_success(exporter, "exported 1048576 bytes");
}

TEST_P(examples, ranks) {
  const std::string socket = directory_ / "ranks";
  auto one = start("exchange_ranks", {"1", socket});
  auto zero = start("exchange_ranks", {"0", socket});
  expect_success(zero, "rank 0: 1048576 of 1048576 bytes are rank 1's");
  expect_success(one, "rank 1: 1048576 of 1048576 bytes are rank 0's");
}

TEST_P(examples, dead_exporter_is_reported_and_replaced) {
  const std::string name = shared_memory_name();
  auto dead = start("exchange_posix_shm", {"export", name});
  dead.wait_for_line("^exported ", seconds(60));
  const pid_t killed = GetParam() == placement::together ? dead.pid() : only_child_of(dead.pid());
  ASSERT_GT(killed, 0);
  ASSERT_EQ(gpushm::base::signal_process(killed, SIGKILL), 0);
  // unshare(1) has no fixed exit status for this case.
  const auto end = dead.wait_exit(seconds(60));
  EXPECT_FALSE(end.success()) << end.text();
  const auto result =
      gpushm_testing::run_program(command("exchange_posix_shm", {"import", name}), seconds(90));
  EXPECT_EQ(result.status, exited(1));
  const auto by_process = [](pid_t pid) {
    return "exchange_posix_shm: import: the process that exported it is gone: its process " +
           std::to_string(pid) + " has ended (export it again from a running process)\n";
  };
  const std::string by_driver =
      "exchange_posix_shm: open: the handle is no longer valid: its exporter has exited or freed "
      "the memory (cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE (400)) (share the memory again "
      "from a running process)\n";
  if (GetParam() == placement::together) {
    EXPECT_EQ(result.err, by_process(killed));
  } else {
    // The importer does not see the exporter's process, so the driver reports the error; unless the
    // kernel reused the dead namespace's number for the importer's, in which PID 1 is another
    // process.
    EXPECT_THAT(result.err, ::testing::AnyOf(by_driver, by_process(1)));
  }

  auto exporter = start("exchange_posix_shm", {"export", name});
  exporter.wait_for_line("^exported ", seconds(60));
  auto importer = start("exchange_posix_shm", {"import", name});
  expect_success(importer, "the sum of 1048576 bytes is 5242880");
  expect_success(exporter, "exported 1048576 bytes");
}

INSTANTIATE_TEST_SUITE_P(processes,
                         examples,
                         ::testing::Values(placement::together, placement::each_pid_1),
                         [](const auto& tested) {
                           return tested.param == placement::together ? "in_one_pid_namespace"
                                                                      : "each_pid_1";
                         });

}  // namespace
}  // namespace gpushm_tests
