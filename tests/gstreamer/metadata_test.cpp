// SPDX-License-Identifier: Apache-2.0
#include "gstreamer/metadata.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpushm_tests {
namespace {

using namespace gpushm::gstreamer;

item_metadata sample() {
  item_metadata value;
  value.size = 0x0102030405060708U;
  value.pts = 0x1112131415161718U;
  value.dts = 0x2122232425262728U;
  value.duration = 0x3132333435363738U;
  value.offset = 0x4142434445464748U;
  value.flags = flag_discont | flag_delta_unit | flag_interlaced;
  value.caps = "video/x-raw,format=NV12,width=320,height=240,framerate=30/1";
  return value;
}

constexpr std::uint64_t any_slot = ~std::uint64_t{0};

TEST(gstreamer_metadata, layout_is_as_documented) {
  item_metadata value = sample();
  value.caps = "a/b";
  const std::vector<unsigned> expected{
      'G',  'S',  'T',  'B',  1,    0,    3,    0,     // magic, version, length of caps
      0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // size
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // pts
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // dts
      0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,  // duration
      0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41,  // offset
      0x40, 0x20, 0x10, 0x00, 0,    0,    0,    0,    'a', '/', 'b'};  // flags, reserved, caps
  std::vector<unsigned> written;
  for (const std::byte each : encode(value)) {
    written.push_back(std::to_integer<unsigned>(each));
  }
  EXPECT_EQ(written, expected);
}

TEST(gstreamer_metadata, are_read_as_written) {
  for (const item_metadata& value : {item_metadata{}, sample()}) {
    item_metadata read;
    ASSERT_EQ(decode(encode(value), any_slot, read), metadata_fault::none);
    EXPECT_EQ(read, value);
  }
}

TEST(gstreamer_metadata, unknown_flags_are_neither_written_nor_read) {
  item_metadata value = sample();
  value.flags = ~std::uint32_t{0};
  auto bytes = encode(value);
  item_metadata read;
  ASSERT_EQ(decode(bytes, any_slot, read), metadata_fault::none);
  EXPECT_EQ(read.flags, known_flags);
  std::fill_n(bytes.begin() + 48, 4, std::byte{0xff});
  ASSERT_EQ(decode(bytes, any_slot, read), metadata_fault::none);
  EXPECT_EQ(read.flags, known_flags);
}

TEST(gstreamer_metadata, caps_fill_the_item_and_not_more) {
  item_metadata value = sample();
  value.caps.assign(max_caps_bytes, 'x');
  EXPECT_EQ(encode(value).size(), max_metadata_bytes);
  value.caps += 'x';
  EXPECT_THROW(static_cast<void>(encode(value)), std::length_error);
  value.caps = "a\nb";
  EXPECT_THROW(static_cast<void>(encode(value)), std::invalid_argument);
}

TEST(gstreamer_metadata, size_must_not_exceed_the_slot) {
  const auto bytes = encode(sample());
  item_metadata read;
  EXPECT_EQ(decode(bytes, sample().size, read), metadata_fault::none);
  EXPECT_EQ(decode(bytes, sample().size - 1, read), metadata_fault::invalid);
}

TEST(gstreamer_metadata, foreign_later_and_damaged_ones_are_distinguished) {
  const auto good = encode(sample());
  item_metadata read;
  const auto with = [&](std::size_t at, unsigned value) {
    auto bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return decode(bytes, any_slot, read);
  };
  EXPECT_EQ(decode({}, any_slot, read), metadata_fault::foreign);
  EXPECT_EQ(with(0, 'g'), metadata_fault::foreign);
  EXPECT_EQ(with(4, 2), metadata_fault::version);
  EXPECT_EQ(with(4, 0), metadata_fault::invalid);
  EXPECT_EQ(with(5, 1), metadata_fault::invalid);
  EXPECT_EQ(with(6, 1), metadata_fault::invalid);
  EXPECT_EQ(with(7, 1), metadata_fault::invalid);
  EXPECT_EQ(with(52, 1), metadata_fault::invalid);
  EXPECT_EQ(with(56, '\n'), metadata_fault::invalid);
  EXPECT_EQ(with(56, 0), metadata_fault::invalid);
  EXPECT_EQ(with(56, 0xc3), metadata_fault::invalid);
  for (std::size_t size = 5; size != good.size(); ++size) {
    EXPECT_EQ(decode(std::span(good).first(size), any_slot, read), metadata_fault::invalid) << size;
  }
  EXPECT_EQ(read, item_metadata{}) << "a failure changes nothing";
}

TEST(gstreamer_metadata, random_bytes_are_harmless) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same bytes each time
  const auto good = encode(sample());
  for (int round = 0; round != 20'000; ++round) {
    auto bytes = good;
    bytes.resize(random() % (max_metadata_bytes + 1));
    for (unsigned change = random() % 8; change != 0 && !bytes.empty(); --change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    item_metadata read;
    if (decode(bytes, 1'000, read) == metadata_fault::none) {
      EXPECT_LE(read.size, 1'000U);
      EXPECT_EQ(encode(read).size(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace gpushm_tests
