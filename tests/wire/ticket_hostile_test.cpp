// SPDX-License-Identifier: Apache-2.0
// Tickets that are truncated, modified, forged, or from a later version.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "gpushm/error.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/wire/ticket_samples.hpp"

namespace gpushm::wire {
namespace {

using namespace ticket_samples;

// ---- rejected tickets ----

TEST(invalid_ticket, one_bit_changed) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  std::size_t by_checksum = 0;
  for (const auto& name : golden_names()) {
    bytes data = golden(name);
    ASSERT_GT(data.size(), header_bytes) << name;
    for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
      const auto mask = static_cast<std::byte>(1U << bit % 8);
      data[bit / 8] ^= mask;
      const auto why = rejection(data);
      ASSERT_TRUE(why) << name << " bit " << bit;
      ASSERT_EQ(why->code(), errc::invalid_ticket) << name << " bit " << bit;
      // Magic and length are checked first.
      const bool first = bit < 8 * 8 || (bit >= 12 * 8 && bit < 16 * 8);
      ASSERT_EQ(why->cause() == "the checksum does not match", !first) << name << " bit " << bit;
      by_checksum += first ? 0 : 1;
      data[bit / 8] ^= mask;
    }
  }
  EXPECT_GT(by_checksum, 10'000U);
}

TEST(invalid_ticket, truncated) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  for (const auto& name : golden_names()) {
    const bytes data = golden(name);
    for (std::size_t size = 0; size < data.size(); ++size) {
      const std::string cause =
          size < 8 ? "it does not begin with a ticket's magic number"
          : size < header_bytes
              ? "it is " + std::to_string(size) + " bytes long, the header requires 20"
              : "it is " + std::to_string(size) + " bytes long, its header specifies " +
                    std::to_string(data.size());
      expect_invalid(std::span(data).first(size), cause);
    }
  }
}

TEST(invalid_ticket, trailing_bytes) {
  if (!std::filesystem::exists(GPUSHM_GOLDEN_DIR)) {
    GTEST_SKIP() << "no golden files on this machine";
  }
  for (const auto& name : golden_names()) {
    for (const int fill : {0x00, 0x0A, 0xFF}) {
      const std::size_t size = golden(name).size();
      for (std::size_t more = 1; more <= 40; ++more) {
        bytes data = golden(name);
        data.resize(size + more, static_cast<std::byte>(fill));
        expect_invalid(data,
                       "it is " + std::to_string(size + more) +
                           " bytes long, its header specifies " + std::to_string(size));
      }
    }
  }
}

TEST(invalid_ticket, wrong_header) {
  const bytes good = every_field().whole();
  bytes data = good;
  put(data, 0, of("GPUSHMD\r"));
  expect_invalid(data, "it does not begin with a ticket's magic number");
  expect_invalid({}, "it does not begin with a ticket's magic number");
  expect_invalid(whole({}), "field 1 is missing");
  data = good;
  put(data, 16, little(slow_crc(good), 4));
  expect_invalid(data, "the checksum does not match");

  // The limit is checked before the length in the header.
  parts longest = every_field();
  longest.broker.fields[1] = bytes(max_ticket_bytes - good.size() + 28, std::byte{'s'});
  ASSERT_EQ(longest.whole().size(), max_ticket_bytes);
  EXPECT_FALSE(rejection(longest.whole()));
  longest.broker.fields[1].push_back(std::byte{'s'});
  expect_invalid(longest.whole(), "it is 4097 bytes long, the limit is 4096");
}

TEST(invalid_ticket, broken_rule) {
  struct broken {
    std::function<void(parts&)> change;
    std::string cause;
  };
  const bytes long_text(256, std::byte{'x'});
  const std::vector<broken> cases{
      // required fields
      {[](parts& p) { p.top.fields.erase(1); }, "field 1 is missing"},
      {[](parts& p) { p.top.fields.erase(2); }, "field 2 is missing"},
      {[](parts& p) { p.top.fields.erase(4); }, "field 4 is missing"},
      {[](parts& p) { p.device.fields.clear(); }, "field 5 is missing"},
      {[](parts& p) { p.exporter.fields.clear(); }, "field 6 is missing"},
      {[](parts& p) { p.exporter.fields.erase(5); }, "field 5 of the exporter is missing"},
      {[](parts& p) { p.legacy.fields.erase(1); }, "field 1 of the legacy handle is missing"},
      {[](parts& p) { p.pool.fields.erase(1); }, "field 1 of the pool pointer is missing"},
      {[](parts& p) { p.broker.fields.erase(1); }, "the broker reference has no socket path"},
      {[](parts& p) { p.broker.fields.erase(2); }, "field 2 of the broker reference is missing"},
      {[](parts& p) { p.broker.fields.erase(3); }, "the broker reference has no segment name"},
      {[](parts& p) { p.broker.fields.erase(4); }, "field 4 of the broker reference is missing"},
      {[](parts& p) { p.legacy = p.pool = p.broker = {}; },
       "there is no way to open it: fields 16, 17, 18 and 20 are missing"},
      // lengths
      {[](parts& p) { p.top.fields[1] = {}; }, "field 1 is 0 bytes long, not 1"},
      {[](parts& p) { p.top.fields[2].pop_back(); }, "field 2 is 7 bytes long, not 8"},
      {[](parts& p) { p.top.fields[3] = little(1, 9); }, "field 3 is 9 bytes long, not 8"},
      {[](parts& p) { p.top.fields[4] = little(1, 1); }, "field 4 is 1 byte long, not 8"},
      {[](parts& p) { p.top.fields[7].pop_back(); }, "field 7 is 7 bytes long, not 8"},
      {[](parts& p) { p.top.fields[8].pop_back(); }, "field 8 is 7 bytes long, not 8"},
      {[](parts& p) { p.device.fields[1] = little(1, 2); },
       "field 1 of the device is 2 bytes long, not 1"},
      {[](parts& p) { p.device.fields[4].pop_back(); },
       "field 4 of the device is 3 bytes long, not 4"},
      {[](parts& p) { p.exporter.fields[2].pop_back(); },
       "field 2 of the exporter is 7 bytes long, not 8"},
      {[](parts& p) { p.exporter.fields[3].pop_back(); },
       "field 3 of the exporter is 3 bytes long, not 4"},
      {[](parts& p) { p.exporter.fields[4].pop_back(); },
       "field 4 of the exporter is 7 bytes long, not 8"},
      {[](parts& p) { p.exporter.fields[5].pop_back(); },
       "field 5 of the exporter is 15 bytes long, not 16"},
      {[](parts& p) { p.legacy.fields[1].pop_back(); },
       "field 1 of the legacy handle is 63 bytes long, not 64"},
      {[](parts& p) { p.legacy.fields[2] = little(8, 4); },
       "field 2 of the legacy handle is 4 bytes long, not 2"},
      {[](parts& p) { p.pool.fields[1].pop_back(); },
       "field 1 of the pool pointer is 63 bytes long, not 64"},
      {[](parts& p) { p.pool.fields[2].pop_back(); },
       "field 2 of the pool pointer is 7 bytes long, not 8"},
      {[](parts& p) { p.broker.fields[2].pop_back(); },
       "field 2 of the broker reference is 15 bytes long, not 16"},
      {[](parts& p) { p.broker.fields[4].pop_back(); },
       "field 4 of the broker reference is 7 bytes long, not 8"},
      // strings
      {[](parts& p) { p.device.fields[2] = bytes(129, std::byte{'x'}); },
       "field 2 of the device is 129 bytes long, the limit is 128"},
      {[](parts& p) { p.device.fields[3] = bytes(129, std::byte{'x'}); },
       "field 3 of the device is 129 bytes long, the limit is 128"},
      {[](parts& p) { p.exporter.fields[1] = bytes(65, std::byte{'x'}); },
       "field 1 of the exporter is 65 bytes long, the limit is 64"},
      {[&](parts& p) { p.broker.fields[3] = long_text; },
       "field 3 of the broker reference is 256 bytes long, the limit is 255"},
      {[](parts& p) { p.device.fields[2] = of("GPU\n"); },
       "field 2 of the device contains a control character"},
      {[](parts& p) { p.device.fields[3] = of("0\x7F"); },
       "field 3 of the device contains a control character"},
      {[](parts& p) { p.exporter.fields[1] = of("\x1F"); },
       "field 1 of the exporter contains a control character"},
      {[](parts& p) { p.broker.fields[1].back() = std::byte{0}; },
       "field 1 of the broker reference contains a control character"},
      {[](parts& p) { p.broker.fields[3].front() = std::byte{0}; },
       "field 3 of the broker reference contains a control character"},
      {[](parts& p) { p.broker.fields[3].pop_back(); },
       "field 3 of the broker reference is not UTF-8"},
      {[](parts& p) { p.broker.fields[1] = {}; }, "the broker reference has no socket path"},
      {[](parts& p) { p.broker.fields[3] = {}; }, "the broker reference has no segment name"},
      // fields
      {[](parts& p) { p.top.tail = one_field(2, little(1, 8)); }, "field 2 is duplicated"},
      {[](parts& p) {
         p.top.tail = one_field(500, {});
         add(p.top.tail, one_field(500, {}));
       },
       "field 500 is duplicated"},
      {[](parts& p) { p.device.tail = one_field(4, little(3, 4)); },
       "field 4 of the device is duplicated"},
      {[](parts& p) { p.exporter.tail = one_field(5, {}); },
       "field 5 of the exporter is duplicated"},
      {[](parts& p) { p.legacy.tail = one_field(1, {}); },
       "field 1 of the legacy handle is duplicated"},
      {[](parts& p) { p.pool.tail = one_field(1, {}); },
       "field 1 of the pool pointer is duplicated"},
      {[](parts& p) { p.broker.tail = one_field(1, {}); },
       "field 1 of the broker reference is duplicated"},
      {[](parts& p) { p.top.tail = bytes(1); }, "it ends within a field's number and length"},
      {[](parts& p) { p.top.tail = bytes(5); }, "it ends within a field's number and length"},
      {[](parts& p) { p.broker.tail = bytes(5); },
       "the broker reference ends within a field's number and length"},
      {[](parts& p) {
         p.top.tail = one_field(99, bytes(4));
         p.top.tail.pop_back();
       },
       "field 99 is 4 bytes long, bytes left: 3"},
      {[](parts& p) {
         p.top.tail = little(99, 2);
         add(p.top.tail, little(0xFFFFFFFF, 4));
       },
       "field 99 is 4294967295 bytes long, bytes left: 0"},
      // A field must not extend beyond its group, even if bytes follow.
      {[](parts& p) {
         p.device.tail = one_field(9, bytes(1));
         p.device.tail[2] = std::byte{2};
       },
       "field 9 of the device is 2 bytes long, bytes left: 1"},
      // values
      {[](parts& p) { p.top.fields[2] = little(0, 8); }, "the size is 0"},
      {[](parts& p) { p.top.fields[4] = little(0x1433, 8); },
       "4660 bytes at offset 512 are not within an allocation of 5171"},
      {[](parts& p) { p.top.fields[4] = little(0, 8); },
       "4660 bytes at offset 512 are not within an allocation of 0"},
      {[](parts& p) { p.top.fields[3] = little(0xFFFFFFFFFFFFFFFF, 8); },
       "4660 bytes at offset 18446744073709551615 are not within an allocation of 2097152"},
      {[](parts& p) { p.top.fields[2] = little(0xFFFFFFFFFFFFFFFF, 8); },
       "18446744073709551615 bytes at offset 512 are not within an allocation of 2097152"},
      {[](parts& p) { p.top.fields[1] = little(0, 1); }, "it is host memory on a device"},
      {[](parts& p) { p.device.fields[1] = little(0, 1); }, "it is device memory on the host"},
      {[](parts& p) { p.device.fields.erase(1); }, "it is device memory on the host"},
      {[](parts& p) { p.device.fields.erase(2); }, "the device has no UUID"},
      {[](parts& p) { p.device.fields[2] = {}; }, "the device has no UUID"},
      {[](parts& p) { p.device.fields[4] = little(0xFFFFFFFE, 4); }, "the device's minor is -2"},
      {[](parts& p) { p.exporter.fields[3] = little(0xFFFFFFFF, 4); }, "the exporter's PID is -1"},
      {[](parts& p) { p.legacy.fields[2] = little(61, 2); },
       "the PID's offset in the legacy handle is 61, the limit is 60"},
      {[](parts& p) { p.broker.fields[4] = little(0, 8); },
       "the generation is 0, not from 1 to 72057594037927935"},
      {[](parts& p) { p.broker.fields[4] = little(std::uint64_t{1} << 56U, 8); },
       "the generation is 72057594037927936, not from 1 to 72057594037927935"}};
  ASSERT_FALSE(rejection(every_field().whole()));
  for (const auto& each : cases) {
    parts p = every_field();
    each.change(p);
    expect_invalid(p.whole(), each.cause);
  }
}

TEST(invalid_ticket, broken_rule_of_timelines) {
  const std::vector<std::pair<std::function<void(parts&)>, std::string>> cases{
      {[](parts& p) { p.word = {}; },
       "there is no way to open it: fields 16, 17, 18 and 20 are missing"},
      {[](parts& p) { p.legacy = every_field().legacy; },
       "it is a timeline with a handle of memory"},
      {[](parts& p) { p.pool = every_field().pool; }, "it is a timeline with a handle of memory"},
      {[](parts& p) { p.top.fields[2] = little(16, 8); },
       "16 bytes at offset 0 are not within an allocation of 8"},
      {[](parts& p) { p.top.fields[4] = p.top.fields[2] = little(16, 8); },
       "it is a timeline of 16 bytes"},
      {[](parts& p) { p.top.fields[1] = little(0, 1); }, "it is memory with a word reference"},
      {[](parts& p) { p.device = every_field().device; }, "it is host memory on a device"},
      {[](parts& p) { p.word.fields.erase(1); }, "field 1 of the word reference is missing"},
      {[](parts& p) { p.word.fields.erase(2); }, "field 2 of the word reference is missing"},
      {[](parts& p) { p.word.fields.erase(3); }, "field 3 of the word reference is missing"},
      {[](parts& p) { p.word.fields.erase(4); }, "field 4 of the word reference is missing"},
      {[](parts& p) { p.word.fields.erase(5); }, "field 5 of the word reference is missing"},
      {[](parts& p) { p.word.fields[5].pop_back(); },
       "field 5 of the word reference is 3 bytes long, not 4"},
      {[](parts& p) { p.word.fields[1] = little(0xFFFFFFFF, 4); },
       "the word reference has a negative descriptor"},
      {[](parts& p) { p.word.fields[4] = little(0x80000000, 4); },
       "the word reference has a negative descriptor"},
      {[](parts& p) { p.word.fields[5] = little(512, 4); },
       "the word reference has word 512, the last one is 511"},
      {[](parts& p) { p.word.tail = one_field(1, {}); },
       "field 1 of the word reference is duplicated"}};
  ASSERT_FALSE(rejection(of_timeline().whole()));
  for (const auto& [change, cause] : cases) {
    parts p = of_timeline();
    change(p);
    expect_invalid(p.whole(), cause);
  }
}

TEST(unsupported_ticket, unknown_kind) {
  parts p = every_field();
  p.top.fields[1] = little(4, 1);
  p.top.fields[2] = {};  // may have a meaning for the unknown kind
  expect_unsupported(p.whole(), "memory kind 4 is not supported");
  p.top.fields[1] = little(6, 1);
  expect_unsupported(p.whole(), "memory kind 6 is not supported");
  p = every_field();
  p.device.fields[1] = little(3, 1);
  expect_unsupported(p.whole(), "device kind 3 is not supported");
}

// ---- arbitrary bytes ----

/// Counts the three possible outcomes of reading bytes.
struct outcomes {
  std::size_t read = 0;
  std::size_t invalid = 0;
  std::size_t unsupported = 0;

  void see(const bytes& data) {
    const auto why = rejection(data);
    if (why) {
      ASSERT_TRUE(why->code() == errc::invalid_ticket || why->code() == errc::unsupported_version)
          << why->what();
      (why->code() == errc::invalid_ticket ? invalid : unsupported) += 1;
      return;
    }
    ++read;
    const ticket value = decode_ticket(data);
    const bytes again = encode_ticket(value);
    ASSERT_LE(again.size(), data.size());
    ASSERT_EQ(decode_exactly(again), value);
  }
};

/// A random number below `limit`.
std::size_t pick(std::mt19937_64& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

bytes noise(std::mt19937_64& random, std::size_t size) {
  bytes result(size);
  std::generate(result.begin(), result.end(), [&] { return static_cast<std::byte>(random()); });
  return result;
}

std::size_t random_rounds() {
  return gpushm_testing::number_from_environment<std::size_t>("GPUSHM_RANDOM_TICKETS", 20'000);
}

TEST(random_bytes, are_rejected_or_round_trip) {
  std::mt19937_64 random(20'240'501);
  outcomes seen;
  const std::size_t rounds = random_rounds();
  for (std::size_t i = 0; i < rounds; ++i) {
    bytes data = noise(random, pick(random, 400));
    if (i % 2 == 0 && data.size() >= header_bytes) {
      put(data, 8, little(0x0001'0001, 4));
      data = refit(data);
    }
    ASSERT_NO_FATAL_FAILURE(seen.see(data)) << i;
  }
  EXPECT_EQ(seen.read + seen.invalid + seen.unsupported, rounds);
}

TEST(random_mutations, are_rejected_or_round_trip) {
  std::mt19937_64 random(20'240'502);
  std::vector<bytes> originals{future()};
  for (const auto& each : of_each_kind()) {
    originals.push_back(encode_ticket(each.value));
  }
  outcomes seen;
  const std::size_t rounds = random_rounds();
  for (std::size_t i = 0; i < rounds; ++i) {
    bytes data = originals[pick(random, originals.size())];
    for (std::size_t change = pick(random, 3); change < 3; ++change) {
      const std::size_t at = 8 + pick(random, data.size() - 8);
      const auto where = data.begin() + static_cast<std::ptrdiff_t>(at);
      const auto rest = static_cast<std::size_t>(data.end() - where);
      switch (pick(random, 5)) {
        case 0:
          *where ^= static_cast<std::byte>(1U << pick(random, 8));
          break;
        case 1:
          *where = static_cast<std::byte>(random());
          break;
        case 2: {
          const bytes more = noise(random, pick(random, 12));
          data.insert(where, more.begin(), more.end());
          break;
        }
        case 3:
          data.erase(where, where + static_cast<std::ptrdiff_t>(pick(random, rest)));
          break;
        default:
          // An unknown field, or a part of one.
          add(data,
              one_field(static_cast<std::uint16_t>(random()), noise(random, pick(random, 9))));
          data.resize(data.size() - (pick(random, 4) == 0 ? 1 : 0));
          break;
      }
      data.resize(std::max(data.size(), header_bytes));
    }
    ASSERT_NO_FATAL_FAILURE(seen.see(refit(data))) << i;
  }
  // All three must happen, otherwise the test checks nothing.
  EXPECT_GT(seen.read, 1'000U);
  EXPECT_GT(seen.invalid, 1'000U);
  EXPECT_GT(seen.unsupported, 100U);
}

}  // namespace
}  // namespace gpushm::wire
