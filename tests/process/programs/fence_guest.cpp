// SPDX-License-Identifier: Apache-2.0
// A client whose connection the broker ends while it is stopped, and that goes on.
//   fence_guest SOCKET
// Makes "kept" and an unpublished segment, subscribes to everything, and says "ready". At each line
// of standard input it goes on, and says what it did.

#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

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
    auto events = client.subscribe();
    std::cout << "ready" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    // The first request may find the old connection gone; the next one connects again.
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
      throw std::runtime_error("the state of a segment that came back is " +
                               std::string(gpushm::to_string(kept->state())));
    }
    unpublished->publish();
    again.reset();
    std::cout << "came back" << std::endl;
    std::getline(std::cin, line);
    kept.reset();
    unpublished.reset();
    std::cout << "released" << std::endl;
    std::getline(std::cin, line);
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "fence_guest: " << problem.what() << std::endl;
    return 1;
  }
}
