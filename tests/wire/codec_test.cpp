// SPDX-License-Identifier: Apache-2.0
// Messages survive encoding and decoding, and today's packets stay readable forever.
#include "protocol/wire/codec.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/wire/samples.hpp"

namespace gpushm::wire {
namespace {

std::string golden_path(const std::string& name) {
  return std::string(GPUSHM_GOLDEN_DIR) + "/" + name + ".bin";
}

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

TEST(codec, round_trips_every_kind) {
  for (const auto& [name, message] : samples::one_of_each_kind()) {
    EXPECT_EQ(decode(encode(message)), message) << name;
  }
}

TEST(codec, has_a_sample_of_every_kind) {
  const auto all = samples::one_of_each_kind();
  ASSERT_EQ(all.size(), std::variant_size_v<body>);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].message.body.index(), i) << all[i].name;
  }
}

TEST(codec, round_trips_fields_at_limits) {
  for (const auto& [name, message] : samples::at_the_limits()) {
    const auto packet = encode(message);
    EXPECT_LE(packet.size(), max_packet_bytes) << name;
    EXPECT_EQ(decode(packet), message) << name;
  }
}

// With GPUSHM_WRITE_GOLDEN=1 in the environment, missing files are written; existing files are
// never replaced.
TEST(codec, reads_golden_packets) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  for (const auto& [name, message] : samples::one_of_each_kind()) {
    const std::string path = golden_path(name);
    if (std::getenv("GPUSHM_WRITE_GOLDEN") != nullptr && !std::ifstream(path)) {
      const auto packet = encode(message);
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(packet.data()),
                 static_cast<std::streamsize>(packet.size()));
    }
    EXPECT_EQ(decode(read_file(path)), message) << name;
  }
}

TEST(codec, rejects_oversized_message) {
  try {
    static_cast<void>(encode({1, publish{1, std::vector<std::byte>(max_packet_bytes)}}));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::message_too_large);
    EXPECT_STREQ(why.what(),
                 "send: the message has 196680 bytes, the limit is 196608 (send less metadata or "
                 "fewer names per request)");
  }
}

// A peer treats a packet that it cannot decode as a violation and disconnects: the sender must get
// an error first.
TEST(codec, encodes_only_decodable_messages) {
  for (const auto& [name, message] : samples::past_the_limits()) {
    try {
      const auto packet = encode(message);
      ADD_FAILURE() << name << " was encoded" << (decode(packet) ? "" : " and cannot be decoded");
    } catch (const error& why) {
      EXPECT_TRUE(why.code() == errc::message_too_large || why.code() == errc::invalid_argument)
          << name << ": " << why.what();
      EXPECT_FALSE(why.next_step().empty()) << name;
    }
  }
}

}  // namespace
}  // namespace gpushm::wire
