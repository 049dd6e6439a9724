// SPDX-License-Identifier: Apache-2.0
// A user's program with its own broker: creates and opens a segment, through both shared libraries.
#include <array>
#include <cstddef>
#include <cstdio>
#include <gpushm/broker.hpp>
#include <gpushm/gpushm.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  gpushm::broker_options serving;
  serving.socket_path = argv[1];
  const auto broker = gpushm::broker::start(serving);

  gpushm::connect_options connecting;
  connecting.socket_path = broker.socket_path();
  auto producer = gpushm::client::connect(connecting);
  gpushm::create_options creating;
  creating.size_bytes = 4096;
  creating.device = "host";
  auto created = producer.create("consumer/one", creating);
  created.fill(std::byte{0x5A});
  created.publish("table");

  auto consumer = gpushm::client::connect(connecting);
  const auto opened = consumer.open("consumer/one");
  std::array<std::byte, 1> last{};
  opened.read(4095, last);
  std::printf("opened generation %llu\n", static_cast<unsigned long long>(opened.generation()));

  // A broker already listens on the socket: the other library throws this error.
  try {
    const auto second = gpushm::broker::start(serving);
  } catch (const gpushm::error& failure) {
    return failure.code() == gpushm::errc::address_in_use && last[0] == std::byte{0x5A} ? 0 : 1;
  }
  return 1;
}
