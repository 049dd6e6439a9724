// SPDX-License-Identifier: Apache-2.0
// Parts of the command without side effects: checksum, durations, the demo's pattern and size, the
// seccomp profile of its containers.
#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/gpushm/channel/item_header.hpp"
#include "apps/gpushm/channel/latencies.hpp"
#include "apps/gpushm/channel/rates.hpp"
#include "apps/gpushm/channel/shape.hpp"
#include "apps/gpushm/demo/demo_size.hpp"
#include "apps/gpushm/demo/pattern.hpp"
#include "apps/gpushm/segment/checksum.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/oci/seccomp.hpp"

namespace gpushm::cli {
namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint32_t checksum(std::span<const std::byte> data) {
  crc32c sum;
  sum.add(data);
  return sum.value();
}

TEST(checksum_of, matches_published_values) {
  // RFC 3720, appendix B.4, and the check value of the Castagnoli polynomial.
  EXPECT_EQ(checksum(bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(checksum(std::vector<std::byte>(32)), 0x8A9136AAU);
  EXPECT_EQ(checksum(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
  EXPECT_EQ(checksum({}), 0U);
}

TEST(checksum_of, is_equal_in_pieces_and_without_the_instruction) {
  std::vector<std::byte> data(100'003);
  make_pattern(7, 0, data);
  const std::uint32_t whole = checksum(data);
  for (const std::size_t split : {1UL, 7UL, 8UL, 4096UL, 99'999UL}) {
    crc32c sum;
    sum.add(std::span(data).first(split));
    sum.add(std::span(data).subspan(split));
    EXPECT_EQ(sum.value(), whole) << split;
  }
  EXPECT_EQ(~detail::crc32c_portable(~std::uint32_t{0}, data), whole);
}

TEST(duration, is_parsed_with_its_unit) {
  const std::array<std::pair<std::string_view, std::optional<std::chrono::milliseconds>>, 12> table{
      {{"500ms", 500ms},
       {"10s", 10s},
       {"1.5s", 1500ms},
       {"2m", 2min},
       {"1h", 1h},
       {"0", 0ms},
       {"10", std::nullopt},
       {"", std::nullopt},
       {"-1s", std::nullopt},
       {"1.2.3s", std::nullopt},
       {"s", std::nullopt},
       {"999999h", std::nullopt}}};
  for (const auto& [text, expected] : table) {
    EXPECT_EQ(app::parse_duration(text), expected) << text;
  }
}

TEST(seccomp_profile, has_this_architecture) {
  utsname machine{};
  ASSERT_EQ(::uname(&machine), 0);
  std::string name = static_cast<const char*>(machine.machine);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  const auto architectures = app::oci::default_seccomp().at("architectures");
  EXPECT_EQ(architectures, nlohmann::json::array({"SCMP_ARCH_" + name}));
}

TEST(pattern, detects_every_wrong_byte) {
  std::vector<std::byte> block(4096 + 3);
  make_pattern(42, 8 * 1000, block);
  EXPECT_EQ(check_pattern(42, 8 * 1000, block).wrong_bytes, 0U);
  EXPECT_NE(check_pattern(43, 8 * 1000, block).wrong_bytes, 0U);
  EXPECT_NE(check_pattern(42, 8 * 1001, block).wrong_bytes, 0U);
  for (const std::size_t at : {0UL, 5UL, 4095UL, 4098UL}) {
    block[at] ^= std::byte{1};
    const check_result result = check_pattern(42, 8 * 1000, block);
    EXPECT_EQ(result.wrong_bytes, 1U);
    EXPECT_EQ(result.first_wrong_offset, 8 * 1000 + at);
    EXPECT_EQ(result.checked_bytes, block.size());
    block[at] ^= std::byte{1};
  }
}

TEST(demo_size, fits_into_free_memory) {
  constexpr std::uint64_t gib = 1ULL << 30U;
  constexpr std::uint64_t mib = 1ULL << 20U;
  EXPECT_EQ(fitting_size(gib, 100 * gib), gib);
  EXPECT_EQ(fitting_size(gib, gib), 512 * mib);
  EXPECT_EQ(fitting_size(gib, 0), mib);
}

TEST(demo_size, free_memory_of_the_host_is_known) {
  const auto free = free_bytes({"host", {}, {}, device_kind::host});
  ASSERT_TRUE(free);
  EXPECT_GT(*free, 1U << 20U);
}

// ---- channels ----

TEST(channel_item_header, is_read_as_it_was_written) {
  const item_header written{item_content::bytes, 1'000, 12'345, 0xFFFF'FFFFU, 17, 42};
  auto stored = encode(written);
  item_header read;
  EXPECT_EQ(decode(stored, read), header_kind::known);
  EXPECT_EQ(read, written);
  EXPECT_EQ(decode(std::span(stored).first(item_header_bytes - 1), read), header_kind::unknown);
  EXPECT_EQ(decode({}, read), header_kind::other);
  stored[8] = std::byte{2};  // the version
  EXPECT_EQ(decode(stored, read), header_kind::unknown);
  stored[0] ^= std::byte{1};
  EXPECT_EQ(decode(stored, read), header_kind::other);
}

TEST(channel_shape, is_read_as_it_was_written) {
  const channel_shape shape{4, std::uint64_t{3} << 40U};
  EXPECT_EQ(shape_in(bytes(to_metadata(shape))), shape);
  for (const char* other : {"",
                            "{}",
                            "[1]",
                            R"({"gpushm_channel":2,"slots":4,"slot_bytes":1})",
                            R"({"gpushm_channel":1,"slots":1025,"slot_bytes":1})",
                            R"({"gpushm_channel":1,"slots":-1,"slot_bytes":1})",
                            R"({"gpushm_channel":1,"slots":"4","slot_bytes":1})"}) {
    EXPECT_EQ(shape_in(bytes(other)), std::nullopt) << other;
  }
  EXPECT_EQ(segment_bytes({3, 1}), 3U * 512);
  EXPECT_EQ(segment_bytes({3, 513}), 3U * 1'024);
}

TEST(channel_latencies, percentiles_are_within_two_percent) {
  latencies times;
  EXPECT_EQ(times.percentile(0.5), 0ns);
  for (int i = 1; i <= 10'000; ++i) {
    times.add(std::chrono::nanoseconds(i) * 1'000);
  }
  times.add(-1ns);  // counts as 0
  EXPECT_EQ(times.count(), 10'001U);
  EXPECT_EQ(times.max(), 10ms);
  EXPECT_EQ(times.percentile(1), 10ms);
  EXPECT_EQ(times.percentile(0), 0ns);
  for (const double part : {0.001, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = part * 10'000'000;
    const auto found = static_cast<double>(times.percentile(part).count());
    EXPECT_GE(found, exact * 0.999) << part;
    EXPECT_LE(found, exact * 1.02) << part;
  }
  latencies small;
  for (int i = 0; i != 100; ++i) {
    small.add(std::chrono::nanoseconds(i));
  }
  EXPECT_EQ(small.percentile(0.5), 49ns);
  small.add(std::chrono::nanoseconds::max());
  EXPECT_EQ(small.percentile(1), std::chrono::nanoseconds::max());
}

TEST(channel_rates, are_readable) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1'000), "1,000");
  EXPECT_EQ(grouped(1'234'567), "1,234,567");
  EXPECT_EQ(rate_text(30, 30U << 20U, 1.0), "30 items/s, 30 MiB/s");
  EXPECT_EQ(rate_text(10'000, 0, 2.0), "5,000 items/s, 0 B/s");
  EXPECT_EQ(per_second(1, 0), 0);
}

}  // namespace
}  // namespace gpushm::cli
