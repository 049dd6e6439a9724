// SPDX-License-Identifier: Apache-2.0
// `topo --measure` on fake GPUs: every pair has numbers or a reason, and a broken driver is an
// error with its cause. Tests on real GPUs check the numbers.

#include "apps/gpushm/inspect/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>

#include "base/process/signals.hpp"
#include "gpushm/error.hpp"
#include "tests/support/broker_process/scoped_variable.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm::base::deadline_in;
using gpushm::cli::measure_gpus;
using gpushm::inspect::measured_pair;
using gpushm_testing::scaled_timeout;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* next_step =
    " (check nvidia-smi and the kernel log; gpushm doctor tests each GPU separately)";

class measuring : public ::testing::Test {
 protected:
  void make_gpus(int count, bool peer = true) {
    gpushm::fake::fake_gpus_options options;
    options.gpus = count;
    options.peer = peer;
    options.size_bytes = 64UL << 20U;
    gpus_.emplace(options);
    environment_.emplace(gpus_->environment());
  }
  [[nodiscard]] static std::vector<measured_pair> measure() {
    return measure_gpus(deadline_in(scaled_timeout(seconds(60))),
                        gpushm_testing::own_program("gpushm"));
  }
  static void expect_error(const std::string& program,
                           milliseconds timeout,
                           errc code,
                           const std::string& label) {
    try {
      static_cast<void>(measure_gpus(deadline_in(timeout), program));
      FAIL() << "no error";
    } catch (const gpushm::error& failure) {
      EXPECT_EQ(failure.code(), code);
      EXPECT_EQ(failure.what(), label);
    }
  }
  static void expect_numbers(const measured_pair& pair) {
    EXPECT_EQ(pair.problem, "");
    EXPECT_GT(pair.bytes_per_second, 1e6);
    EXPECT_GE(pair.copy_bytes, 1U << 20U);
    EXPECT_LE(pair.copy_bytes, pair.mapped_bytes);
    EXPECT_GT(pair.latency_ns, 0);
    EXPECT_LT(pair.latency_ns, 100e6);
    EXPECT_GT(pair.mapping_ns, 0);
    // A quarter of the free memory.
    EXPECT_GE(pair.mapped_bytes, 8U << 20U);
    EXPECT_LE(pair.mapped_bytes, 16U << 20U);
  }
  static void expect_none(const measured_pair& pair, const std::string& problem) {
    EXPECT_EQ(pair.problem, problem);
    EXPECT_EQ(pair.bytes_per_second, 0);
    EXPECT_EQ(pair.latency_ns, 0);
    EXPECT_EQ(pair.mapping_ns, 0);
  }

  std::optional<gpushm::fake::fake_gpus> gpus_;
  std::optional<scoped_variables> environment_;
};

TEST_F(measuring, every_ordered_pair_has_numbers) {
  make_gpus(2);
  const auto measured = measure();
  ASSERT_EQ(measured.size(), 4U);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 2; ++j) {
      const measured_pair& pair = measured[2 * i + j];
      SCOPED_TRACE(pair.from + " reads " + pair.to);
      EXPECT_EQ(pair.from, gpus_->gpus()[i].uuid);
      EXPECT_EQ(pair.to, gpus_->gpus()[j].uuid);
      expect_numbers(pair);
    }
  }
  EXPECT_TRUE(!gpus_->mounted() || gpus_->used_bytes(0) + gpus_->used_bytes(1) == 0);
}

TEST_F(measuring, pair_without_peer_access_has_reason) {
  make_gpus(2, false);
  const auto measured = measure();
  ASSERT_EQ(measured.size(), 4U);
  expect_numbers(measured[0]);
  expect_none(measured[1], "no peer access");
  expect_none(measured[2], "no peer access");
  expect_numbers(measured[3]);
}

TEST_F(measuring, failure_affects_one_pair) {
  make_gpus(2);
  const scoped_variables failing("GPUSHM_FAKE_FAIL", "cuMemSetAccess:2=2");
  const auto measured = measure();
  ASSERT_EQ(measured.size(), 4U);
  expect_numbers(measured[0]);
  expect_none(measured[1], "cuMemSetAccess: CUDA_ERROR_OUT_OF_MEMORY (2)");
  expect_numbers(measured[2]);
  expect_numbers(measured[3]);
}

TEST_F(measuring, crash_is_an_error_with_the_signal) {
  make_gpus(1);
  const scoped_variables failing("GPUSHM_FAKE_FAIL", "cuMemcpyDtoDAsync_v2:7=crash");
  expect_error(gpushm_testing::own_program("gpushm"),
               scaled_timeout(seconds(30)),
               errc::peer_died,
               std::string("measure GPUs: the measuring process ended: killed by signal 11 "
                           "(Segmentation fault)") +
                   next_step);
}

TEST_F(measuring, missing_gpu_is_an_error) {
  make_gpus(1);
  const scoped_variables hidden("GPUSHM_DEV_ROOT", gpus_->make_dev_root("none", {}));
  expect_error(gpushm_testing::own_program("gpushm"),
               scaled_timeout(seconds(30)),
               errc::driver_unavailable,
               "measure GPUs: load CUDA driver \"libcuda.so.1\": cuInit: no device: "
               "CUDA_ERROR_NO_DEVICE (100) (check nvidia-smi, CUDA_VISIBLE_DEVICES and the "
               "container's device nodes)");
}

TEST_F(measuring, hang_is_an_error_and_leaves_no_process) {
  const gpushm_testing::temp_dir directory(0755);
  const std::string program = directory / "hangs";
  {
    std::ofstream script(program);
    script << "#!/bin/sh\necho $$ > " << directory.path() << "/pid\nexec sleep 1000\n";
  }
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  expect_error(program,
               seconds(1),
               errc::timed_out,
               std::string("measure GPUs: the measuring process did not finish in time and was "
                           "killed") +
                   next_step);
  pid_t pid = 0;
  std::ifstream(directory / "pid") >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_NE(gpushm::base::signal_process(pid, 0), 0);
}

}  // namespace
}  // namespace gpushm_tests
