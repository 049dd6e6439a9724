// SPDX-License-Identifier: Apache-2.0
// Each call of the driver by which a window changes fails once, and then once more while the former
// memory is mapped again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::run_program;
using testing::Contains;

constexpr int unknown_error = 999;

class window_failures : public testing::TestWithParam<std::string> {
 protected:
  /// The lines of an agent.
  std::vector<std::string> run_with(const std::string& failures, const std::string& trace = {}) {
    gpushm_testing::spawn_options wanted;
    wanted.argv = {gpushm_testing::own_program("window_agent")};
    for (const auto& [name, value] : gpus_.environment()) {
      wanted.env.emplace_back(name, value);
    }
    wanted.env.emplace_back("GPUSHM_FAKE_FAIL", failures);
    wanted.env.emplace_back("GPUSHM_FAKE_TRACE", trace);
    const auto result = run_program(wanted, gpushm_testing::scaled_timeout(60s));
    EXPECT_TRUE(result.status.success()) << result.out << result.err;
    std::vector<std::string> lines;
    std::istringstream text(result.out);
    for (std::string each; std::getline(text, each);) {
      lines.push_back(each);
    }
    return lines;
  }

  struct calls {
    std::size_t to_create = 0;  ///< number of the last one before the window is created
    std::size_t to_change = 0;  ///< the same, before the changes
    std::size_t total = 0;
  };
  /// Of GetParam(), in an agent in which nothing fails.
  calls count_calls() {
    const std::string trace = folder_ / "trace";
    EXPECT_THAT(run_with({}, trace), Contains("held as before"));
    calls result;
    std::ifstream file(trace);
    for (std::string each; std::getline(file, each);) {
      if (each == "create") {
        result.to_create = result.total;
      } else if (each == "change") {
        result.to_change = result.total;
      } else if (each == "end") {
        break;
      } else if (each.find(" " + GetParam() + " ") != std::string::npos) {
        ++result.total;
      }
    }
    return result;
  }
  [[nodiscard]] static std::string failure(std::size_t number) {
    return GetParam() + ":" + std::to_string(number) + "=" + std::to_string(unknown_error);
  }

  gpushm_testing::temp_dir folder_;
  gpushm::fake::fake_gpus gpus_;
};

/// All changes are made in the end, and nothing is left of the failures.
void expect_complete(const std::vector<std::string>& lines, const std::string& failures) {
  std::vector<std::string> shown;
  for (const std::string& each : lines) {
    if (each.starts_with("shown ")) {
      shown.push_back(each);
    }
  }
  EXPECT_EQ(shown, (std::vector<std::string>{"shown b b", "shown a a"})) << failures;
  EXPECT_THAT(lines, Contains("held as before")) << failures;
}

TEST_P(window_failures, leave_the_former_segment) {
  const calls numbers = count_calls();
  std::size_t failed = 0;
  for (std::size_t number = numbers.to_create + 1; number <= numbers.total; ++number) {
    const bool creates = number <= numbers.to_change;
    const std::vector<std::string> lines = run_with(failure(number));
    expect_complete(lines, failure(number));
    for (const std::string& each : lines) {
      if (!each.starts_with("failed ")) {
        continue;
      }
      ++failed;
      EXPECT_TRUE(creates ? each == "failed driver_error no window"
                          : each == "failed driver_error mapped a a" ||
                                each == "failed driver_error mapped b b")
          << failure(number) << ": " << each;
    }
  }
  EXPECT_EQ(failed, numbers.total - numbers.to_create);
  EXPECT_NE(failed, 0U);
}

TEST_P(window_failures, twice_leave_nothing_mapped_until_the_next_change) {
  const calls numbers = count_calls();
  std::size_t unmapped = 0;
  for (std::size_t number = numbers.to_change + 1; number <= numbers.total; ++number) {
    const std::string failures = failure(number) + "," + failure(number + 1);
    const std::vector<std::string> lines = run_with(failures);
    expect_complete(lines, failures);
    for (const std::string& each : lines) {
      if (!each.starts_with("failed ")) {
        continue;
      }
      const bool is_unmapped = each == "failed driver_error unmapped a nothing" ||
                               each == "failed driver_error unmapped b nothing";
      unmapped += is_unmapped ? 1 : 0;
      EXPECT_TRUE(is_unmapped || each == "failed driver_error mapped a a" ||
                  each == "failed driver_error mapped b b")
          << failures << ": " << each;
    }
  }
  const bool is_of_mapping = GetParam() != "cuStreamQuery" && GetParam() != "cuMemAddressReserve";
  EXPECT_EQ(unmapped != 0, is_of_mapping) << unmapped;
}

INSTANTIATE_TEST_SUITE_P(,
                         window_failures,
                         testing::Values("cuMemAddressReserve",
                                         "cuMemUnmap",
                                         "cuMemImportFromShareableHandle",
                                         "cuMemMap",
                                         "cuMemSetAccess",
                                         "cuStreamQuery"),
                         [](const auto& test) { return test.param; });

}  // namespace
