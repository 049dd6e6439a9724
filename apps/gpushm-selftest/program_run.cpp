// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-selftest/program_run.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/process/child_process.hpp"
#include "gpushm/error.hpp"

namespace gpushm::selftest {

std::string program_result::text() const {
  return wait_status ? base::status_text(*wait_status) : problem;
}

program_result run_program(const std::vector<std::string>& argv,
                           const std::vector<std::pair<std::string, std::string>>& environment,
                           std::chrono::milliseconds timeout) {
  program_result result;
  const auto until = base::deadline_in(timeout);
  base::child_options options;
  options.argv = argv;
  options.environment = environment;
  options.merge_stderr = true;
  options.cancel_fd = app::stop_signal::fd();
  try {
    base::child_process child = base::child_process::start(options);
    child.close_input();
    if (child.read_all(result.output, until)) {
      result.wait_status = child.wait(until);
    }
    if (!result.wait_status) {
      result.problem = "not finished after " + app::duration_text(timeout);
    }
  } catch (const error& failure) {
    result.problem = failure.what();
  }
  return result;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): no code sets variables
  std::istringstream parts(std::string(path == nullptr ? "" : path) +
                           ":/usr/sbin:/usr/bin:/sbin:/bin");
  for (std::string part; std::getline(parts, part, ':');) {
    if (!part.starts_with('/')) {
      continue;
    }
    part += '/';
    part += name;
    if (::access(part.c_str(), X_OK) == 0) {
      return part;
    }
  }
  return std::nullopt;
}

outcome failed(const program_result& result) {
  return {verdict::failed, result.text(), nullptr, result.output};
}

}  // namespace gpushm::selftest
