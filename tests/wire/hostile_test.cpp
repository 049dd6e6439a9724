// SPDX-License-Identifier: Apache-2.0
// Packets of peers that are broken, malicious, or newer than this code.
#include <gtest/gtest.h>

#include <cstring>

#include "protocol/wire/codec.hpp"
#include "protocol/wire/protocol_generated.h"
#include "tests/wire/samples.hpp"

namespace gpushm::wire {
namespace {

namespace fbs = flatbuffers;

/// Copies to a buffer of the exact size, so that sanitizers detect reads past the end.
std::optional<message> decode_exactly(std::span<const std::byte> bytes) {
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  return decode(copy);
}

std::vector<std::byte> finished(fbs::FlatBufferBuilder& builder,
                                fb::Body type,
                                fbs::Offset<void> offset,
                                const char* identifier = fb::MessageIdentifier()) {
  builder.Finish(fb::CreateMessage(builder, 7, type, offset), identifier);
  std::vector<std::byte> packet(builder.GetSize());
  std::memcpy(packet.data(), builder.GetBufferPointer(), packet.size());
  return packet;
}

TEST(hostile_packet, truncated_is_rejected) {
  for (const auto& [name, message] : samples::one_of_each_kind()) {
    const auto packet = encode(message);
    for (std::size_t size = 0; size < packet.size(); ++size) {
      const auto cut = decode_exactly(std::span(packet).first(size));
      // The last bytes may be padding or a string's terminator; the rest must decode to the same
      // message.
      EXPECT_TRUE(!cut || *cut == message) << name << " cut to " << size;
    }
    EXPECT_EQ(decode_exactly(std::span(packet).first(packet.size() / 2)), std::nullopt) << name;
  }
}

TEST(hostile_packet, bit_flip_is_rejected_or_decodes_completely) {
  std::size_t rejected = 0;
  std::size_t accepted = 0;
  for (const auto& [name, message] : samples::one_of_each_kind()) {
    auto packet = encode(message);
    for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(1U << bit % 8);
      packet[bit / 8] ^= mask;
      if (const auto decoded = decode_exactly(packet)) {
        ++accepted;
        ASSERT_EQ(decode(encode(*decoded)), *decoded) << name << " bit " << bit;
      } else {
        ++rejected;
      }
      packet[bit / 8] ^= mask;
    }
  }
  // Both must happen, otherwise the test checks nothing.
  EXPECT_GT(rejected, 1'000U);
  EXPECT_GT(accepted, 1'000U);
}

TEST(hostile_packet, empty_or_noise_is_rejected) {
  EXPECT_EQ(decode({}), std::nullopt);
  for (const int fill : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
    for (const std::size_t size : {1U, 4U, 8U, 12U, 64U, 4096U}) {
      EXPECT_EQ(decode(std::vector<std::byte>(size, static_cast<std::byte>(fill))), std::nullopt);
    }
  }
}

TEST(hostile_packet, above_size_limit_is_rejected) {
  auto packet = encode({1, bye{}});
  packet.resize(max_packet_bytes);
  EXPECT_NE(decode(packet), std::nullopt);
  packet.resize(max_packet_bytes + 1);
  EXPECT_EQ(decode(packet), std::nullopt);
}

TEST(hostile_packet, wrong_file_identifier_is_rejected) {
  fbs::FlatBufferBuilder builder;
  const auto body = fb::CreateBye(builder).Union();
  EXPECT_EQ(decode(finished(builder, fb::Body::Bye, body, "GSHN")), std::nullopt);
}

TEST(hostile_packet, without_body_is_rejected) {
  for (const fb::Body type : {fb::Body::NONE, fb::Body::Bye}) {
    fbs::FlatBufferBuilder builder;
    EXPECT_EQ(decode(finished(builder, type, 0)), std::nullopt);
  }
}

TEST(hostile_packet, unknown_enumerators_are_rejected) {
  struct enumerators {
    std::uint8_t device;
    std::uint8_t backend;
    std::uint8_t lifetime;
    bool known;
  };
  for (const auto& each : {enumerators{0, 0, 0, true},
                           enumerators{2, 1, 1, true},
                           enumerators{3, 0, 0, false},
                           enumerators{0, 5, 1, true},
                           enumerators{0, 6, 0, true},
                           enumerators{0, 7, 0, false},
                           enumerators{0, 0, 2, false},
                           enumerators{255, 0, 0, false},
                           enumerators{0, 255, 0, false},
                           enumerators{0, 0, 255, false}}) {
    fbs::FlatBufferBuilder builder;
    const auto name = builder.CreateString("x");
    const auto device = fb::CreateDevice(builder, each.device);
    const auto reserve =
        fb::CreateReserve(builder, name, 1, 1, 1, device, each.backend, each.lifetime).Union();
    EXPECT_EQ(decode(finished(builder, fb::Body::Reserve, reserve)).has_value(), each.known);

    fbs::FlatBufferBuilder listing;
    const auto where = fb::CreateDevice(listing, each.device);
    const auto info =
        fb::CreateSegment(listing, 0, 1, 0, 1, 1, 1, where, each.backend, each.lifetime);
    const auto infos = listing.CreateVector(&info, 1);
    const auto page = fb::CreateListing(listing, infos).Union();
    EXPECT_EQ(decode(finished(listing, fb::Body::Listing, page)).has_value(), each.known);
  }
  for (const int kind : {0, 1, 8, 9, 255}) {
    fbs::FlatBufferBuilder builder;
    const auto event = fb::CreateEvent(builder, static_cast<std::uint8_t>(kind)).Union();
    EXPECT_EQ(decode(finished(builder, fb::Body::Event, event)).has_value(), kind == 1 || kind == 8)
        << kind;
  }
}

// Built by hand: `encode` rejects them.
TEST(hostile_packet, list_above_limit_is_rejected) {
  for (const std::size_t count : {max_batch, max_batch + 1}) {
    const std::vector<std::uint64_t> numbers(count, 4096);
    const bool fits = count <= max_batch;
    const auto decoded = [&](fb::Body type, auto&& make) {
      fbs::FlatBufferBuilder builder;
      return decode(finished(builder, type, make(builder).Union())).has_value();
    };
    EXPECT_EQ(decoded(fb::Body::Attach,
                      [&](fbs::FlatBufferBuilder& builder) {
                        const auto list = builder.CreateVector(numbers);
                        return fb::CreateAttach(builder, 1, 0, list);
                      }),
              fits);
    EXPECT_EQ(decoded(fb::Body::Chunks,
                      [&](fbs::FlatBufferBuilder& builder) {
                        const auto list = builder.CreateVector(numbers);
                        return fb::CreateChunks(builder, 1, 0, list);
                      }),
              fits);
    EXPECT_EQ(decoded(fb::Body::Opened,
                      [&](fbs::FlatBufferBuilder& builder) {
                        const auto list = builder.CreateVector(numbers);
                        const auto what = fb::CreateSegment(builder);
                        return fb::CreateOpened(builder, 0, what, 0, list);
                      }),
              fits);
    EXPECT_EQ(decoded(fb::Body::Report,
                      [&](fbs::FlatBufferBuilder& builder) {
                        const auto list = builder.CreateVector(numbers);
                        return fb::CreateReport(builder, list);
                      }),
              fits);
    EXPECT_EQ(decoded(fb::Body::Report,
                      [&](fbs::FlatBufferBuilder& builder) {
                        const auto list = builder.CreateVector(numbers);
                        return fb::CreateReport(builder, 0, list);
                      }),
              fits);
  }
  for (const std::size_t count : {std::size_t{0}, max_open_many, max_open_many + 1}) {
    fbs::FlatBufferBuilder builder;
    const auto names = builder.CreateVectorOfStrings(std::vector<std::string>(count, "n"));
    const auto body = fb::CreateOpenMany(builder, names).Union();
    EXPECT_EQ(decode(finished(builder, fb::Body::OpenMany, body)).has_value(),
              count == max_open_many);
  }
}

TEST(hostile_packet, wrong_epoch_length_is_rejected) {
  for (const std::size_t size : {0U, 15U, 16U, 17U}) {
    fbs::FlatBufferBuilder builder;
    const auto epoch = builder.CreateVector(std::vector<std::uint8_t>(size, 1));
    const auto body = fb::CreateWelcome(builder, 1, 0, epoch).Union();
    EXPECT_EQ(decode(finished(builder, fb::Body::Welcome, body)).has_value(), size == 16) << size;
  }
  fbs::FlatBufferBuilder builder;
  const auto body = fb::CreateWelcome(builder, 1).Union();
  EXPECT_FALSE(decode(finished(builder, fb::Body::Welcome, body)));
}

TEST(hostile_packet, opened_without_segment_is_rejected) {
  fbs::FlatBufferBuilder builder;
  const auto body = fb::CreateOpened(builder, 1).Union();
  EXPECT_FALSE(decode(finished(builder, fb::Body::Opened, body)));
}

// Offsets may refer to the same data: 50,000 of them in one packet could cause gigabytes of
// allocations.
TEST(hostile_packet, allocations_are_bounded_by_packet_size) {
  {
    fbs::FlatBufferBuilder builder;
    const auto name = builder.CreateString(std::string(100'000, 'n'));
    const auto names = builder.CreateVector(std::vector<fbs::Offset<fbs::String>>(1'000, name));
    const auto body = fb::CreateOpenMany(builder, names).Union();
    EXPECT_FALSE(decode(finished(builder, fb::Body::OpenMany, body)));
  }
  {
    fbs::FlatBufferBuilder builder;
    const auto name = builder.CreateString(std::string(1'000, 'n'));
    const auto info = fb::CreateSegment(builder, name, 1);
    const auto infos = builder.CreateVector(std::vector<fbs::Offset<fb::Segment>>(40'000, info));
    const auto body = fb::CreateListing(builder, infos).Union();
    EXPECT_FALSE(decode(finished(builder, fb::Body::Listing, body)));
  }
  {
    fbs::FlatBufferBuilder builder;
    const auto info = fb::CreateSegment(builder, 0, 1);
    const auto infos = builder.CreateVector(std::vector<fbs::Offset<fb::Segment>>(40'000, info));
    const auto body = fb::CreateListing(builder, infos).Union();
    EXPECT_FALSE(decode(finished(builder, fb::Body::Listing, body)));
  }
}

// The library's verifier checks the alignment of a list's length, not of its elements.
TEST(hostile_packet, unaligned_numbers_are_read) {
  const message sent{5, attach{1, 0, {0x1122334455667788, 2}}};
  const auto packet = encode(sent);
  std::size_t moved = 0;
  // Inserts four bytes before the numbers: tries every 4-byte offset to find the one that refers to
  // them.
  for (std::size_t at = 0; at + 4 <= packet.size(); at += 4) {
    std::uint32_t offset = 0;
    std::memcpy(&offset, packet.data() + at, sizeof offset);
    if (at + offset + 4 > packet.size()) {
      continue;
    }
    std::uint32_t length = 0;
    std::memcpy(&length, packet.data() + at + offset, sizeof length);
    if (offset == 0 || length != 2) {
      continue;
    }
    auto other = packet;
    other.insert(other.begin() + static_cast<std::ptrdiff_t>(at + offset), 4, std::byte{0});
    offset += 4;
    std::memcpy(other.data() + at, &offset, sizeof offset);
    if (const auto decoded = decode_exactly(other); decoded && *decoded == sent) {
      ++moved;
    }
  }
  EXPECT_EQ(moved, 1U);
}

TEST(shared_text, is_decoded_for_each_reference) {
  fbs::FlatBufferBuilder builder;
  const auto name = builder.CreateString("kv");
  const auto names = builder.CreateVector(std::vector<fbs::Offset<fbs::String>>(3, name));
  const auto body = fb::CreateOpenMany(builder, names).Union();
  const message expected{7, open_many{{"kv", "kv", "kv"}, 0, 0}};
  EXPECT_EQ(decode(finished(builder, fb::Body::OpenMany, body)), expected);
}

TEST(newer_packet, unknown_fields_are_ignored) {
  fbs::FlatBufferBuilder builder;
  const auto name = builder.CreateString("kv");
  const auto future = builder.CreateString("from the future");
  const fbs::uoffset_t start = builder.StartTable();
  builder.AddOffset(fb::Open::VT_NAME, name);
  builder.AddElement<std::uint32_t>(fb::Open::VT_TIMEOUT_MS, 250, 0);
  builder.AddOffset(fb::Open::VT_GENERATION + 2, future);
  builder.AddElement<std::uint64_t>(fb::Open::VT_GENERATION + 4, 99, 0);
  const fbs::Offset<void> body(builder.EndTable(start));
  const message expected{7, open{"kv", 0, 250}};
  EXPECT_EQ(decode(finished(builder, fb::Body::Open, body)), expected);
}

TEST(newer_packet, unknown_field_after_body_is_ignored) {
  fbs::FlatBufferBuilder builder;
  const auto body = fb::CreateBye(builder).Union();
  const fbs::uoffset_t start = builder.StartTable();
  builder.AddElement<std::uint64_t>(fb::Message::VT_ID, 9, 0);
  builder.AddElement<std::uint8_t>(
      fb::Message::VT_BODY_TYPE, static_cast<std::uint8_t>(fb::Body::Bye), 0);
  builder.AddOffset(fb::Message::VT_BODY, body);
  builder.AddElement<std::uint64_t>(fb::Message::VT_BODY + 2, 5, 0);
  builder.Finish(fbs::Offset<fb::Message>(builder.EndTable(start)), fb::MessageIdentifier());
  std::vector<std::byte> packet(builder.GetSize());
  std::memcpy(packet.data(), builder.GetBufferPointer(), packet.size());
  const message expected{9, bye{}};
  EXPECT_EQ(decode(packet), expected);
}

TEST(newer_packet, unknown_kind_is_rejected) {
  for (const int type : {static_cast<int>(fb::Body::MAX) + 1, 200, 255}) {
    fbs::FlatBufferBuilder builder;
    const auto body = fb::CreateBye(builder).Union();
    EXPECT_EQ(decode(finished(builder, static_cast<fb::Body>(type), body)), std::nullopt) << type;
  }
}

TEST(older_packet, missing_fields_have_defaults) {
  fbs::FlatBufferBuilder builder;
  const auto body = fb::CreateReserve(builder).Union();
  EXPECT_EQ(decode(finished(builder, fb::Body::Reserve, body)), (message{7, reserve{}}));
  fbs::FlatBufferBuilder other;
  const auto device = fb::CreateDevice(other);
  const auto with_device = fb::CreateReserve(other, 0, 0, 0, 0, device).Union();
  EXPECT_EQ(decode(finished(other, fb::Body::Reserve, with_device)), (message{7, reserve{}}));
}

TEST(unknown_errc, is_passed_on_with_its_text) {
  const message sent{3, failure{1, static_cast<errc>(999), "it is new", "update"}};
  EXPECT_EQ(decode(encode(sent)), sent);
}

}  // namespace
}  // namespace gpushm::wire
