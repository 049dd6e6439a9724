// SPDX-License-Identifier: Apache-2.0
// Tickets survive encoding and decoding, and today's tickets stay readable forever.
#include "protocol/wire/ticket.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "gpushm/error.hpp"
#include "protocol/wire/crc32.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/wire/ticket_samples.hpp"

namespace gpushm::wire {
namespace {

using namespace ticket_samples;
using gpushm_testing::bytes_of_hex;

/// Writes missing files with GPUSHM_WRITE_GOLDEN=1 in the environment; never replaces one.
void expect_golden(const std::string& name, const bytes& expected) {
  const std::string path = golden_path(name);
  if (std::getenv("GPUSHM_WRITE_GOLDEN") != nullptr && !std::ifstream(path)) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(expected.data()),
               static_cast<std::streamsize>(expected.size()));
  }
  EXPECT_EQ(golden(name), expected) << name;
}

// ---- the checksum ----

TEST(crc32, returns_check_value) {
  static_assert(crc32({}) == 0);
  EXPECT_EQ(crc32(of("123456789")), 0xCBF43926U);
  EXPECT_EQ(slow_crc(of("123456789")), 0xCBF43926U);
}

TEST(crc32, continues_from_previous) {
  const bytes data = counting(9, 200);
  const std::span all(data);
  for (std::size_t cut = 0; cut <= data.size(); ++cut) {
    ASSERT_EQ(crc32(all.subspan(cut), crc32(all.first(cut))), slow_crc(data)) << cut;
  }
}

// ---- writing and reading ----

TEST(ticket, round_trips) {
  for (const auto& [name, value] : of_each_kind()) {
    EXPECT_EQ(decode_exactly(encode_ticket(value)), value) << name;
  }
  EXPECT_EQ(decode_exactly(encode_ticket(value_of_every_field())), value_of_every_field());
}

TEST(ticket, has_a_sample_of_each_kind) {
  std::set<gpushm::backend> seen;
  for (const auto& each : of_each_kind()) {
    seen.insert(each.value.backend);
  }
  EXPECT_EQ(seen,
            (std::set{backend::host,
                      backend::cuda_vmm,
                      backend::cuda_ipc,
                      backend::cuda_pool,
                      backend::timeline}));
}

TEST(ticket, matches_specification) {
  EXPECT_EQ(encode_ticket(value_of_every_field()), every_field().whole());
}

TEST(ticket, golden_tickets_are_written_and_read) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  for (const auto& [name, value] : of_each_kind()) {
    expect_golden(name, encode_ticket(value));
    EXPECT_EQ(decode_exactly(golden(name)), value) << name;
  }
}

/// Output of `gpushm export --kind host` in format 1, when these bytes were called a descriptor.
constexpr std::string_view format_1_hex =
    "47505553484d440a01000100f20000001f34c40b0100010000000002000800000000100000000000"
    "00040008000000001000000000000005000000000006006600000001002400000033653562623236"
    "392d386263652d343438392d383166342d643038346134366135376362020008000000fcffffef00"
    "000000030004000000694e00000400080000009aba7d000000000005001000000039f301ff03dfab"
    "11514900faf1d19cd412004300000001000c000000776569676874732e736f636b0200100000009b"
    "e23492c4c2b18394be001765f674cd03000700000077656967687473040008000000010000000000"
    "0000";

TEST(ticket, format_1_from_before_renaming_is_read) {
  const bytes before = bytes_of_hex(std::string(format_1_hex));
  const ticket read = decode_exactly(before);
  EXPECT_EQ(encode_ticket(read), before);

  ticket expected;
  expected.size_bytes = expected.allocated_bytes = 4096;
  expected.exporter.boot_id = "3e5bb269-8bce-4489-81f4-d084a46a57cb";
  expected.exporter.pid_namespace = 4026531836;
  expected.exporter.pid = 20073;
  expected.exporter.start_time = 8239770;
  expected.broker = {"weights.sock", {}, "weights", 1};
  const auto put_in = [](auto& target, const bytes& value) {
    std::transform(value.begin(), value.end(), target.begin(), [](std::byte each) {
      return std::to_integer<std::uint8_t>(each);
    });
  };
  put_in(expected.exporter.epoch, bytes_of_hex("39f301ff03dfab11514900faf1d19cd4"));
  put_in(expected.broker->epoch, bytes_of_hex("9be23492c4c2b18394be001765f674cd"));
  EXPECT_EQ(read, expected);
}

TEST(ticket, future_ticket_is_read_without_unknown_fields) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  expect_golden("future", future());
  EXPECT_EQ(decode_exactly(golden("future")), value_of_every_field());
}

TEST(ticket, newer_reader_required_is_reported) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  expect_golden("too_new", too_new());
  expect_unsupported(
      golden("too_new"),
      "its version is 3, which requires a reader of version 2 or newer; this reader has version 1");
}

TEST(ticket, omits_unknown_values) {
  const bytes written = encode_ticket(of_each_kind().back().value);
  parts p;
  p.top.fields = {{1, little(0, 1)}, {2, little(4096, 8)}, {4, little(4096, 8)}, {5, {}}};
  p.exporter.fields = {{5, counting(0x55, 16)}};
  p.broker.fields = {
      {1, of("socket")}, {2, counting(0x10, 16)}, {3, of("table")}, {4, little(1, 8)}};
  EXPECT_EQ(written, p.whole());
}

TEST(ticket, missing_fields_have_defaults) {
  parts p = every_field();
  p.top.fields.erase(3);
  p.top.fields.erase(7);
  p.top.fields.erase(8);
  p.device.fields = {{1, little(2, 1)}, {2, of("MIG-1")}};
  p.exporter.fields = {{5, counting(0xA0, 16)}};
  p.legacy.fields.erase(2);
  p.pool.fields.erase(2);
  auto expected = value_of_every_field();
  expected.offset_bytes = expected.address = expected.buffer_id = 0;
  expected.device = {device_kind::mig, "MIG-1", "", -1};
  expected.exporter = {"", 0, 0, 0, counting<std::uint8_t, 16>(0xA0)};
  expected.legacy->pid_offset.reset();
  expected.pool->pool = 0;
  EXPECT_EQ(decode_exactly(p.whole()), expected);
  // Empty strings may also be present.
  p.device.fields[3] = {};
  p.exporter.fields[1] = {};
  EXPECT_EQ(decode_exactly(p.whole()), expected);
}

TEST(ticket, round_trips_values_at_limits) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  auto value = value_of_every_field();
  value.offset_bytes = most - value.size_bytes;
  value.allocated_bytes = value.address = value.buffer_id = most;
  value.device.uuid.assign(128, 'u');
  value.device.pci_address.assign(128, 'p');
  value.device.minor = std::numeric_limits<std::int32_t>::max();
  value.exporter = {std::string(64, 'b'),
                    most,
                    std::numeric_limits<std::int32_t>::max(),
                    most,
                    counting<std::uint8_t, 16>(0)};
  value.pool->pool = most;
  value.broker->name.assign(255, 'n');
  value.broker->generation = max_generation;
  for (const std::uint16_t pid_offset : {std::uint16_t{0}, std::uint16_t{60}}) {
    value.legacy->pid_offset = pid_offset;
    value.broker->socket_path = "s";
    const std::size_t room = max_ticket_bytes - encode_ticket(value).size();
    value.broker->socket_path.append(room, 's');
    const bytes longest = encode_ticket(value);
    EXPECT_EQ(longest.size(), max_ticket_bytes);
    EXPECT_EQ(decode_exactly(longest), value);
  }
}

TEST(ticket, too_long_is_rejected_on_write) {
  auto value = value_of_every_field();
  value.broker->socket_path.append(max_ticket_bytes - encode_ticket(value).size() + 1, 's');
  try {
    static_cast<void>(encode_ticket(value));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::message_too_large);
    EXPECT_STREQ(why.what(),
                 "write ticket: it would be 4097 bytes long, the limit is 4096 (use a shorter "
                 "socket path)");
  }
}

TEST(ticket, invalid_values_are_rejected_on_write) {
  const auto expect_rejected = [](const std::string& cause,
                                  const std::function<void(ticket&)>& change) {
    auto value = value_of_every_field();
    change(value);
    try {
      static_cast<void>(encode_ticket(value));
      ADD_FAILURE() << "no error: " << cause;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::invalid_argument);
      EXPECT_EQ(why.what(),
                "write ticket: " + cause + " (docs/ticket.md specifies what a ticket can contain)");
    }
  };
  expect_rejected("the size is 0", [](ticket& d) { d.size_bytes = 0; });
  expect_rejected("it is host memory on a device", [](ticket& d) { d.backend = backend::host; });
  expect_rejected("there is no way to open it: fields 16, 17, 18 and 20 are missing",
                  [](ticket& d) {
                    d.legacy.reset();
                    d.pool.reset();
                    d.broker.reset();
                  });
  expect_rejected("field 1 of the broker reference contains a control character",
                  [](ticket& d) { d.broker->socket_path = "a\nb"; });
  expect_rejected("the broker reference has no segment name",
                  [](ticket& d) { d.broker->name.clear(); });
}

}  // namespace
}  // namespace gpushm::wire
