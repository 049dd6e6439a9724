// SPDX-License-Identifier: Apache-2.0
// A broker in a separate process, for tests that count its resources or kill it.
//   test_broker SOCKET [LIMIT=VALUE]...
// Prints "ready" once clients can connect. Commands on standard input: "begin" and "end" pass the
// tracer's marks; the end of the input stops it.

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>

#include "gpushm/broker.hpp"
#include "tests/support/broker_process/standard_error_log.hpp"
#include "tests/support/ptrace/marker.hpp"

namespace {

void set_limit(gpushm::broker_limits& limits, const std::string& text) {
  const std::map<std::string, std::uint32_t gpushm::broker_limits::*> numbers{
      {"max_segments", &gpushm::broker_limits::max_segments},
      {"max_connections", &gpushm::broker_limits::max_connections},
      {"max_pending_opens", &gpushm::broker_limits::max_pending_opens},
      {"reserved_descriptors", &gpushm::broker_limits::reserved_descriptors},
      {"hello_timeout_ms", &gpushm::broker_limits::hello_timeout_ms},
      {"send_timeout_ms", &gpushm::broker_limits::send_timeout_ms},
      {"max_inflight_descriptors", &gpushm::broker_limits::max_inflight_descriptors},
      {"fence_delay_ms", &gpushm::broker_limits::fence_delay_ms}};
  const auto equals = text.find('=');
  const auto name = text.substr(0, equals);
  const auto value = std::stoull(text.substr(equals + 1));
  if (name == "memory_bytes") {
    limits.memory_bytes = value;
  } else if (name == "quota_bytes") {
    limits.quota_bytes = value;
  } else if (name == "quota_bytes_per_principal") {
    limits.quota_bytes_per_principal = value;
  } else {
    limits.*numbers.at(name) = static_cast<std::uint32_t>(value);
  }
}

void serve(const gpushm::broker_options& options) {
  const auto broker = gpushm::broker::start(options);
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    if (command == "begin") {
      gpushm_testing::mark_begin();
    } else if (command == "end") {
      gpushm_testing::mark_end();
    }
    std::cout << "did " << command << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    gpushm::broker_options options;
    options.mode = 0666;
    options.raise_descriptor_limit = true;
    options.limits.fence_delay_ms = 10;  // raw clients of tests have no fence and write nothing
    options.socket_path = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; ++i) {
      set_limit(options.limits, argv[i]);
    }
    // Output is dropped if the test does not read it: the broker must not block.
    ::fcntl(STDERR_FILENO, F_SETFL, O_WRONLY | O_NONBLOCK);
    gpushm_tests::log_to_standard_error();
    serve(options);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "test_broker: " << problem.what() << '\n';
    return 1;
  }
}
