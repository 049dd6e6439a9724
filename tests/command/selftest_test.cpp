// SPDX-License-Identifier: Apache-2.0
// doctor's live self-test on fake GPUs: it agrees with the predictions and is isolated from its
// processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/gpushm/inspect/self_test.hpp"
#include "base/files/sanitizers.hpp"
#include "tests/support/broker_process/scoped_variable.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::cli::run_selftest;
using gpushm::cli::selftest_finding;
using gpushm::cli::selftest_options;
using gpushm::cli::trial_result;
using gpushm::inspect::way;
using gpushm_testing::scaled_timeout;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class selftest : public ::testing::Test {
 protected:
  selftest()
      : gpus_(two_gpus()),
        environment_(gpus_.environment()),
        temporary_("TMPDIR", directory_.path()) {}
  ~selftest() override { EXPECT_TRUE(std::filesystem::is_empty(directory_.path())); }
  selftest(const selftest&) = delete;
  selftest& operator=(const selftest&) = delete;

  static gpushm::fake::fake_gpus_options two_gpus() {
    gpushm::fake::fake_gpus_options options;
    options.gpus = 2;
    return options;
  }
  [[nodiscard]] selftest_options options() const {
    selftest_options made;
    for (const auto& gpu : gpus_.gpus()) {
      made.gpus.push_back(gpu.uuid);
    }
    made.budget = scaled_timeout(seconds(60));
    made.accept_fake_chunks = true;
    made.program = gpushm_testing::own_program("gpushm");
    return made;
  }
  /// The expected findings in order: device, way, equal PIDs.
  [[nodiscard]] static std::vector<std::string> expected_order(const selftest_options& options) {
    std::vector<std::string> order{"host host equal", "host host different"};
    for (const std::string& gpu : options.gpus) {
      for (const char* pids : {"equal", "different"}) {
        for (const char* how : {"raw-legacy", "cuda-ipc", "cuda-vmm", "cuda-pool"}) {
          order.push_back(gpu + " " + how + " " + pids);
        }
      }
    }
    return order;
  }
  [[nodiscard]] static std::vector<std::string> order_of(
      const std::vector<selftest_finding>& findings) {
    std::vector<std::string> order;
    for (const auto& each : findings) {
      order.push_back(each.device + " " + std::string(to_string(each.how)) +
                      (each.equal_pids ? " equal" : " different"));
    }
    return order;
  }

  gpushm_testing::temp_dir directory_{0755};
  gpushm::fake::fake_gpus gpus_;
  scoped_variables environment_;
  scoped_variables temporary_;
};

TEST_F(selftest, agrees_with_predictions) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer runs a thread in each process, which uses a PID";
  }
  auto changed = gpus_.gpus();
  changed[1].rdma_vmm = false;
  std::ofstream(gpus_.root() + "/gpus.conf") << gpushm::fake::format_config(changed);
  const auto findings = run_selftest(options());
  if (!findings.front().not_permitted.empty()) {
    GTEST_SKIP() << "cannot create namespaces: " << findings.front().not_permitted;
  }
  EXPECT_EQ(order_of(findings), expected_order(options()));
  for (const auto& each : findings) {
    SCOPED_TRACE(each.device + " " + std::string(to_string(each.how)) +
                 (each.equal_pids ? " equal" : " different"));
    EXPECT_EQ(each.not_permitted, "");
    EXPECT_EQ(each.outcome.exporter_pid == each.outcome.importer_pid, each.equal_pids);
    EXPECT_TRUE(each.as_expected()) << each.outcome.text;
    EXPECT_FALSE(each.unexpected());
    const bool fails = each.how == way::raw_legacy && each.equal_pids;
    EXPECT_EQ(each.outcome.result, fails ? trial_result::fails : trial_result::works)
        << each.outcome.text;
    if (each.how == way::vmm) {
      EXPECT_EQ(each.outcome.exporter_rdma, each.device == gpus_.gpus()[0].uuid);
      EXPECT_EQ(each.outcome.importer_rdma, false);  // the driver never reports it for imports
    } else if (each.how == way::host) {
      EXPECT_EQ(each.outcome.exporter_rdma, std::nullopt);
      EXPECT_EQ(each.outcome.importer_rdma, std::nullopt);
    }
    EXPECT_EQ(each.outcome.failure, fails ? "CUDA_ERROR_INVALID_CONTEXT (201)" : "");
  }
  EXPECT_TRUE(!gpus_.mounted() || gpus_.used_bytes(0) + gpus_.used_bytes(1) == 0);
}

TEST_F(selftest, without_gpus_tests_host_memory_only) {
  auto none = options();
  none.gpus.clear();
  const auto findings = run_selftest(none);
  EXPECT_EQ(order_of(findings), expected_order(none));
  EXPECT_EQ(findings.back().outcome.result, trial_result::works) << findings.back().outcome.text;
  EXPECT_TRUE(findings.back().as_expected());
}

TEST_F(selftest, crash_is_a_finding_and_other_trials_run) {
  const scoped_variables crash("GPUSHM_FAKE_FAIL", "cuMemPoolImportFromShareableHandle:1=crash");
  auto one = options();
  one.gpus.pop_back();
  const auto findings = run_selftest(one);
  ASSERT_EQ(findings.size(), 10U);
  int crashes = 0;
  for (const auto& each : findings) {
    if (!each.not_permitted.empty()) {
      continue;
    }
    SCOPED_TRACE(std::string(to_string(each.how)) + (each.equal_pids ? " equal" : " different"));
    EXPECT_EQ(each.unexpected(), each.how == way::pool) << each.outcome.text;
    if (each.how == way::pool) {
      ++crashes;
      EXPECT_EQ(each.outcome.result, trial_result::crashes);
      EXPECT_EQ(each.outcome.side, "importer");
      EXPECT_EQ(each.outcome.failure, "killed by signal 11 (Segmentation fault)");
      EXPECT_TRUE(each.expected.works);
    }
  }
  EXPECT_GE(crashes, 1);
}

TEST_F(selftest, broken_driver_fails_only_its_trials) {
  const scoped_variables crash("GPUSHM_FAKE_FAIL", "cuInit:1=crash");
  auto one = options();
  one.gpus.pop_back();
  const auto findings = run_selftest(one);
  for (const auto& each : findings) {
    if (!each.not_permitted.empty()) {
      continue;
    }
    const bool host = each.how == way::host;
    EXPECT_EQ(each.outcome.result, host ? trial_result::works : trial_result::crashes);
    EXPECT_EQ(each.unexpected(), !host);
    EXPECT_EQ(each.outcome.side, host ? "" : "exporter");
  }
  EXPECT_EQ(findings.size(), 10U);
}

TEST_F(selftest, missing_gpu_is_a_finding) {
  auto wrong = options();
  wrong.gpus = {"GPU-00000000-0000-0000-0000-000000000000"};
  const auto findings = run_selftest(wrong);
  ASSERT_EQ(findings.size(), 10U);
  EXPECT_EQ(findings[6].outcome.failure, "CUDA_ERROR_INVALID_DEVICE (101)");
  EXPECT_EQ(findings[7].outcome.failure, "device_not_found");
  EXPECT_TRUE(findings[7].unexpected());
}

TEST_F(selftest, trials_after_time_limit_are_not_run) {
  auto hasty = options();
  hasty.budget = milliseconds(0);
  const auto findings = run_selftest(hasty);
  EXPECT_EQ(order_of(findings), expected_order(hasty));
  for (const auto& each : findings) {
    EXPECT_EQ(each.outcome.result, trial_result::not_run);
    EXPECT_EQ(each.outcome.failure, "the time limit of the self-test expired");
    EXPECT_FALSE(each.unexpected());
    EXPECT_FALSE(each.as_expected());
  }
}

TEST_F(selftest, missing_temporary_directory_skips_broker_trials) {
  const scoped_variables gone("TMPDIR", "/nonexistent");
  auto one = options();
  one.gpus.pop_back();
  const auto findings = run_selftest(one);
  ASSERT_EQ(findings.size(), 10U);
  const auto& raw = findings[6];  // different PIDs
  EXPECT_EQ(raw.how, way::raw_legacy);
  EXPECT_EQ(raw.outcome.result, trial_result::works) << raw.outcome.text;
  EXPECT_EQ(findings[1].outcome.result, trial_result::not_run);
  EXPECT_THAT(findings[1].outcome.failure,
              HasSubstr("create temporary directory \"/nonexistent\": mkdtemp: "));
}

TEST_F(selftest, missing_program_is_a_finding) {
  auto wrong = options();
  wrong.program = "/bin/true";
  wrong.gpus.clear();
  const auto findings = run_selftest(wrong);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[1].outcome.result, trial_result::fails);
  EXPECT_EQ(findings[1].outcome.side, "exporter");
  EXPECT_EQ(findings[1].outcome.failure, "peer_died");
  wrong.program = "/nonexistent/gpushm";
  const auto none = run_selftest(wrong);
  ASSERT_EQ(none.size(), 2U);
  EXPECT_EQ(none[1].outcome.result, trial_result::not_run);
  EXPECT_EQ(
      none[1].outcome.failure,
      "start process \"/nonexistent/gpushm\": execve: No such file or directory (ENOENT) (check "
      "the path)");
}

}  // namespace
}  // namespace gpushm_tests
