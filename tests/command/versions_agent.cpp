// SPDX-License-Identifier: Apache-2.0
// versions_agent SOCKET
// Publishes versions as a trainer does, and writes segments that a correct one would not:
//   begin NAME [PART...]              begins a version: "ok NUMBER"
//   tensors NAME DEVICE TABLE BYTES   publishes a segment with this table and these bytes (files)
//   raw NAME DEVICE BYTES [METADATA]  publishes a segment with these bytes and metadata (files)
//   poke NAME OFFSET VALUE            changes a byte of a published segment
//   hold NAME                         opens a segment until the end
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/process/orders.hpp"

using namespace gpushm;
using gpushm_testing::order_words;

namespace {

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw error(errc::system_error, "agent", path, "cannot be opened");
  }
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

class agent {
 public:
  explicit agent(const std::string& socket)
      : client_(client::connect({.socket_path = socket, .timeout = std::chrono::seconds(20)})) {}

  std::string begin(order_words& words) {
    const std::string name = words.text();
    version_options options;
    options.keep_versions = 100;
    for (std::string part = words.text(); !part.empty(); part = words.text()) {
      options.parts.push_back(part);
    }
    return std::to_string(create_version(client_, name, options));
  }

  void tensors(order_words& words) {
    const std::string name = words.text();
    const std::string device = words.text();
    const std::string table = contents_of(words.text());
    segment made = filled(name, device, contents_of(words.text()), tensors_size(table));
    publish_tensors(made, table);
  }

  void raw(order_words& words) {
    const std::string name = words.text();
    const std::string device = words.text();
    const std::string bytes = contents_of(words.text());
    const std::string metadata = words.text();
    segment made = filled(name, device, bytes, bytes.size());
    made.publish(metadata.empty() ? std::string() : contents_of(metadata));
  }

  void poke(order_words& words) {
    segment opened = client_.open(words.text(), {.access = access::read_write});
    const std::uint64_t offset = words.number();
    const auto value = static_cast<std::byte>(words.number());
    opened.write(offset, std::span(&value, 1));
  }

  void hold(order_words& words) { held_.push_back(client_.open(words.text())); }

 private:
  segment filled(const std::string& name,
                 const std::string& device,
                 const std::string& bytes,
                 std::uint64_t size_bytes) {
    segment made = client_.create(
        name, {.size_bytes = size_bytes, .device = device, .lifetime = lifetime::persistent});
    made.write(0, std::as_bytes(std::span(bytes)));
    return made;
  }

  client client_;
  std::vector<segment> held_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  try {
    agent trainer(argv[1]);
    gpushm_testing::order_table orders;
    orders.add("begin", [&](order_words& words) { return trainer.begin(words); });
    orders.add("tensors", [&](order_words& words) { trainer.tensors(words); });
    orders.add("raw", [&](order_words& words) { trainer.raw(words); });
    orders.add("poke", [&](order_words& words) { trainer.poke(words); });
    orders.add("hold", [&](order_words& words) { trainer.hold(words); });
    std::cout << "ready" << std::endl;
    orders.run();
    return 0;
  } catch (const error& why) {
    std::cout << "failed " << why.what() << std::endl;
    return 1;
  }
}
