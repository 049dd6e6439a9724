// SPDX-License-Identifier: Apache-2.0
#include "tests/support/broker_process/broker_process.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <iostream>

#include "tests/support/process/programs.hpp"

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

broker_process::~broker_process() {
  if (process_.pid() <= 0 || !::testing::Test::HasFailure()) {
    return;
  }
  try {
    process_.kill(SIGKILL);
    static_cast<void>(process_.wait_exit(std::chrono::seconds(5)));
    std::cerr << "broker's log:\n" << process_.text(gpushm_testing::stream::err) << std::flush;
  } catch (const std::exception& why) {
    std::cerr << "broker's log: " << why.what() << std::endl;
  }
}

}  // namespace gpushm_tests
