// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/gtest_check.hpp"

#include <fmt/core.h>

#include <fstream>

#include "apps/gpushm-selftest/program_run.hpp"
#include "apps/support/temp_directory.hpp"

namespace gpushm::selftest {

namespace {

struct counts {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  std::string failures;  ///< names of the first ones
};

counts count(const json& report) {
  counts result;
  for (const json& suite : report.value("testsuites", json::array())) {
    for (const json& test : suite.value("testsuite", json::array())) {
      if (test.contains("failures")) {
        ++result.failed;
        if (result.failed <= 3) {
          result.failures += (result.failures.empty() ? "" : ", ") + suite.value("name", "") + "." +
                             test.value("name", "");
        }
      } else if (test.value("result", "") == "SKIPPED") {
        ++result.skipped;
      } else if (test.value("status", "") == "RUN") {
        ++result.passed;
      }
    }
  }
  return result;
}

// The first skipped test's message: "FILE:LINE: Skipped", then the reason on the next line.
std::string skip_reason(const std::string& output) {
  constexpr std::string_view mark = ": Skipped\n";
  const std::size_t entry = output.find(mark);
  if (entry == std::string::npos) {
    return "every test was skipped";
  }
  const std::size_t start = entry + mark.size();
  return output.substr(start, output.find('\n', start) - start);
}

json read_report(const std::string& path) {
  std::ifstream file(path);
  json report = json::parse(file, nullptr, false);
  return report.is_discarded() ? json(nullptr) : report;
}

}  // namespace

outcome judge_gtest(json report, const std::string& output) {
  const counts seen = count(report);
  outcome result;
  result.data = std::move(report);
  result.detail = std::to_string(seen.passed) + " passed";
  if (seen.failed != 0) {
    result.detail += fmt::format(", {} failed: {}", seen.failed, seen.failures);
  }
  if (seen.skipped != 0) {
    result.detail += fmt::format(", {} skipped", seen.skipped);
  }
  if (seen.failed != 0 || (seen.passed == 0 && seen.skipped == 0)) {
    result.result = verdict::failed;
    result.output = output;
  } else if (seen.passed == 0) {
    result.result = verdict::skipped;
    result.detail = skip_reason(output);
  } else {
    result.result = verdict::passed;
  }
  return result;
}

outcome run_gtest(const std::vector<std::string>& before,
                  const std::string& program,
                  const std::vector<std::pair<std::string, std::string>>& environment,
                  std::chrono::milliseconds timeout) {
  const app::temp_directory directory("gpushm-selftest");
  const std::string file = directory.path() + "/report.json";
  std::vector<std::string> argv = before;
  argv.insert(argv.end(), {program, "--gtest_color=no", "--gtest_output=json:" + file});
  const program_result ended = run_program(argv, environment, timeout);
  json report = read_report(file);
  if (report.is_null()) {
    return failed(ended);
  }
  outcome result = judge_gtest(std::move(report), ended.output);
  // The report alone does not show a crash after the last test or a sanitizer's error.
  if (!ended.success() && result.result != verdict::failed) {
    result.result = verdict::failed;
    result.detail += ", then " + ended.text();
    result.output = ended.output;
  }
  return result;
}

}  // namespace gpushm::selftest
