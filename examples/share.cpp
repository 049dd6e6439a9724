// SPDX-License-Identifier: Apache-2.0
// One process publishes bytes, any number of other processes read them.
//
//   share produce FILE    publishes the file and exits; the memory stays
//   share consume         prints how many bytes it read
//
// Both find the broker through $GPUSHM_SOCKET and can be started in any order.
#include <cstdio>
#include <fstream>
#include <gpushm/gpushm.hpp>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;

namespace {

void produce(std::span<const std::byte> weights) {
  auto client = gpushm::client::connect({.timeout = 10s});
  auto segment = client.create(
      "w/llama", {.size_bytes = weights.size(), .lifetime = gpushm::lifetime::persistent});
  segment.write(0, weights);     // or launch a kernel on segment.mutable_data()
  segment.publish("version 7");  // other clients can open it from here on
}  // the memory stays: it is persistent

std::vector<std::byte> consume() {
  auto client = gpushm::client::connect({.timeout = 10s});
  auto segment = client.open("w/llama", {.timeout = 10s});  // in any process, container or pod
  std::vector<std::byte> copy(segment.size_bytes());
  segment.read(0, copy);  // or use segment.data() in place
  return copy;
}  // the lease ends here

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc > 1 ? argv[1] : "";
  try {
    if (role == "produce" && argc == 3) {
      std::ifstream file(argv[2], std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      produce(std::as_bytes(std::span(bytes)));
    } else if (role == "consume" && argc == 2) {
      std::printf("%zu bytes\n", consume().size());
    } else {
      std::fputs("usage: share produce FILE | share consume\n", stderr);
      return 2;
    }
  } catch (const gpushm::error& failure) {
    std::fprintf(stderr, "share: %s\n", failure.what());
    return 1;
  }
  return 0;
}
