// SPDX-License-Identifier: Apache-2.0
#include "support/broker_process.hpp"

#include "process/programs.hpp"

namespace gpushm_tests {
namespace {

gpushm_testing::child start(const std::string& socket_path,
                            const std::vector<std::string>& limits,
                            unsigned open_files) {
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("test_broker"), socket_path};
  options.argv.insert(options.argv.end(), limits.begin(), limits.end());
  options.open_files = open_files;
  return gpushm_testing::child::start(options);
}

}  // namespace

broker_process::broker_process(std::string socket_path,
                               const std::vector<std::string>& limits,
                               unsigned open_files)
    : socket_path_(std::move(socket_path)), process_(start(socket_path_, limits, open_files)) {
  process_.wait_for_line("^ready$", std::chrono::seconds(20));
}

}  // namespace gpushm_tests
