// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "tests/conformance/driver_facts_agent.hpp"

// The conformance suite; its binary also runs as the agents that it drives.
int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--agent") {
    try {
      return gpushm::conformance::agent_main();
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "agent: %s\n", problem.what());
      return 1;
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
