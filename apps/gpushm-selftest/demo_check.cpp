// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/demo_check.hpp"

#include <fmt/core.h>

#include <chrono>
#include <fstream>

#include "apps/gpushm-selftest/program_run.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/temp_directory.hpp"

namespace gpushm::selftest {

namespace {

// The document is the line that starts like JSON; warnings may precede or follow it.
json find_document(const std::string& output) {
  std::size_t start = 0;
  while (start < output.size()) {
    const std::size_t end = std::min(output.find('\n', start), output.size());
    if (output[start] == '{') {
      json document = json::parse(output.substr(start, end - start), nullptr, false);
      if (!document.is_discarded()) {
        return document;
      }
    }
    start = end + 1;
  }
  return nullptr;
}

std::string describe(const json& document) {
  double last = 0;
  for (const json& step : document.value("steps", json::array())) {
    last = step.value("at_seconds", 0.0);
  }
  const auto mebibytes = document.value("size_bytes", std::uint64_t{0}) >> 20U;
  const json name = document.value("device_name", json(nullptr));
  return fmt::format(
      "{} MiB, backend {}, {}, {}",
      mebibytes,
      document.value("backend", "?"),
      name.is_string() ? name.get<std::string>() : document.value("device", "?"),
      app::duration_text(std::chrono::microseconds(static_cast<std::int64_t>(last * 1e6))));
}

}  // namespace

outcome run_demo(const std::vector<std::string>& before,
                 const std::string& program,
                 const std::vector<std::string>& arguments,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 std::chrono::milliseconds timeout) {
  std::vector<std::string> argv = before;
  argv.insert(argv.end(), {program, "demo", "--json"});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const program_result ended = run_program(argv, environment, timeout);
  json document = find_document(ended.output);
  if (document.is_null()) {
    return failed(ended);
  }
  outcome result;
  if (document.value("result", "") == "PASS" && ended.success()) {
    result.result = verdict::passed;
    result.detail = describe(document);
  } else {
    const json problem = document.value("error", json(nullptr));
    result.detail = problem.is_object() ? problem.value("message", "") : ended.text();
    result.output = ended.output;
    const bool isolated = document.value("isolated", false);
    if (isolated && problem.is_object() && problem.value("code", "") == "permission_denied") {
      result.result = verdict::skipped;
    }
  }
  result.data = std::move(document);
  return result;
}

outcome run_proof(const std::vector<std::string>& before,
                  const std::string& program,
                  const std::vector<std::string>& arguments,
                  const std::vector<std::pair<std::string, std::string>>& environment,
                  std::chrono::milliseconds timeout) {
  const app::temp_directory directory("gpushm-selftest");
  const std::string file = directory.path() + "/report.json";
  std::vector<std::string> argv = before;
  argv.insert(argv.end(), {program, "--json", file});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const program_result ended = run_program(argv, environment, timeout);
  std::ifstream stream(file);
  json report = json::parse(stream, nullptr, false);
  if (!ended.success() || report.is_discarded()) {
    outcome result = failed(ended);
    result.data = report.is_discarded() ? json(nullptr) : std::move(report);
    return result;
  }
  outcome result;
  result.result = verdict::passed;
  result.detail = report.at("rounds").dump() +
                  " writers killed, no byte changed after their death was reported";
  result.data = std::move(report);
  return result;
}

outcome run_benchmark(const std::string& program,
                      const std::vector<std::pair<std::string, std::string>>& environment,
                      std::chrono::milliseconds timeout) {
  const app::temp_directory directory("gpushm-selftest");
  const std::string file = directory.path() + "/report.json";
  const program_result ended = run_program(
      {program, "--benchmark_out_format=json", "--benchmark_out=" + file}, environment, timeout);
  std::ifstream stream(file);
  json report = json::parse(stream, nullptr, false);
  if (!ended.success() || report.is_discarded()) {
    return failed(ended);
  }
  int ran = 0;
  std::string reason;
  for (const json& benchmark : report.value("benchmarks", json::array())) {
    // Google Benchmark reports a skipped benchmark as an error, with the reason.
    if (benchmark.value("error_occurred", false)) {
      reason = benchmark.value("error_message", "");
    } else {
      ++ran;
    }
  }
  outcome result;
  result.result = ran != 0 ? verdict::passed : verdict::skipped;
  result.detail = ran != 0 ? std::to_string(ran) + " measured"
                           : (reason.empty() ? "nothing to measure on this machine" : reason);
  result.data = std::move(report);
  return result;
}

}  // namespace gpushm::selftest
