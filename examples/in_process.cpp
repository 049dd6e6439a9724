// SPDX-License-Identifier: Apache-2.0
// An in-process broker, and a creator that waits until its reader is done. Uses host memory, so it
// runs on any machine.
//
//   in_process SOCKET
#include <cstdio>
#include <future>
#include <gpushm/broker.hpp>
#include <gpushm/gpushm.hpp>

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: in_process SOCKET\n", stderr);
    return 2;
  }
  try {
    const auto broker = gpushm::broker::start({.socket_path = argv[1]});

    auto creator = gpushm::client::connect({.socket_path = argv[1]});
    auto events = creator.subscribe("batch/");
    auto batch = creator.create("batch/0", {.size_bytes = 1 << 20, .device = "host"});
    batch.fill(std::byte{42});
    batch.publish();

    // Usually another process.
    auto reader = std::async(std::launch::async, [path = argv[1]] {
      auto client = gpushm::client::connect({.socket_path = path});
      const auto opened = client.open("batch/0");
      std::printf("reader: the first byte is %d\n",
                  *static_cast<const unsigned char*>(opened.data()));
    });

    while (const auto event = events.next(10s)) {
      const auto kind = gpushm::to_string(event->kind);
      std::printf(
          "creator: %.*s %s\n", static_cast<int>(kind.size()), kind.data(), event->name.c_str());
      if (event->kind == gpushm::event_kind::released) {
        reader.get();
        return 0;
      }
    }
    std::fputs("in_process: no process opened and released the segment within 10 s\n", stderr);
  } catch (const gpushm::error& failure) {
    std::fprintf(stderr, "in_process: %s\n", failure.what());
  }
  return 1;
}
