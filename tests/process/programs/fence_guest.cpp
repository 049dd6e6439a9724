// SPDX-License-Identifier: Apache-2.0
// A client that continues after the broker has dropped its connection while it was stopped.
//   fence_guest SOCKET
// Creates "kept" and unpublished segments, subscribes to everything, and prints "ready". Does its
// next step for each line of standard input, and prints what it did.

#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"

int main(int argc, char** argv) {
  try {
    const std::string socket = argc > 1 ? argv[1] : "";
    auto client = gpushm::client::connect({.socket_path = socket});
    std::optional kept = client.create("kept", {.size_bytes = 4096, .device = "host"});
    kept->publish();
    std::optional again = client.open("kept");
    std::optional unpublished =
        client.create("published later", {.size_bytes = 4096, .device = "host"});
    std::vector<gpushm::segment> more;  // a broker resumes them in several turns
    for (int i = 0; i < 300; ++i) {
      more.push_back(
          client.create("more " + std::to_string(i), {.size_bytes = 1, .device = "host"}));
    }
    auto events = client.subscribe();
    std::cout << "ready" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    // The first request may fail on the old connection; the next one connects again.
    for (int attempt = 0;; ++attempt) {
      try {
        static_cast<void>(client.list());
        break;
      } catch (const gpushm::error& why) {
        if (attempt != 0 || why.code() != gpushm::errc::broker_gone) {
          throw;
        }
      }
    }
    if (kept->state() != gpushm::segment_state::live) {
      throw std::runtime_error("the state of a resumed segment is " +
                               std::string(gpushm::to_string(kept->state())));
    }
    unpublished->publish();
    for (gpushm::segment& each : more) {
      each.publish();
    }
    again.reset();
    std::cout << "resumed" << std::endl;
    std::getline(std::cin, line);
    kept.reset();
    unpublished.reset();
    more.clear();
    std::cout << "released" << std::endl;
    std::getline(std::cin, line);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "fence_guest: " << problem.what() << std::endl;
    return 1;
  }
}
