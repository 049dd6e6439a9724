// SPDX-License-Identifier: Apache-2.0
// A client that sends requests and reads replies only once its parent writes a line.
//   stopped_reader SOCKET COUNT
// It subscribes to all events and prints "ready". After a line on standard input it sends COUNT
// requests and prints "sent". After another it reads everything, and prints for each packet
// "answer N", N the number of its request from 1, or "event KIND [NAME]".

#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocol/wire/messages.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::body_of;
using gpushm_testing::raw_session;
namespace wire = gpushm::wire;

/// Of the first request; the others follow.
constexpr std::uint64_t first_id = 1'000;

void wait_for_line() {
  std::string word;
  std::getline(std::cin, word);
}

void print(const wire::message& message) {
  const auto* const event = std::get_if<wire::event>(&message.body);
  if (event == nullptr) {
    std::cout << "answer " << message.id - first_id + 1 << '\n';
  } else if (event->kind == gpushm::event_kind::resync) {
    std::cout << "event resync\n";
  } else if (event->kind == gpushm::event_kind::published) {
    std::cout << "event published " << event->name << '\n';
  } else {
    std::cout << "event another\n";
  }
}

void run(const std::string& socket, std::uint64_t count) {
  raw_session session = raw_session::greeted(socket);
  const auto subscribed = session.request(wire::subscribe{});
  if (body_of<wire::subscribed>(subscribed) == nullptr) {
    throw std::runtime_error("not subscribed");
  }
  std::cout << "ready" << std::endl;
  wait_for_line();
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!session.send_as(first_id + i, wire::list{})) {
      throw std::runtime_error("not sent");
    }
  }
  std::cout << "sent" << std::endl;
  wait_for_line();
  bool has_last = false;
  for (;;) {
    const auto got = session.receive(has_last ? 100ms : 10s);
    if (!got.message) {
      break;
    }
    print(*got.message);
    has_last = has_last || got.message->id == first_id + count - 1;
  }
  session.send(wire::bye{});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, argv + argc);
    run(arguments.at(1), std::stoull(arguments.at(2)));
    return 0;
  } catch (const std::exception& problem) {
    std::cerr << "stopped_reader: " << problem.what() << '\n';
    return 1;
  }
}
