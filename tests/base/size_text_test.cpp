// SPDX-License-Identifier: Apache-2.0
#include "base/text/size_text.hpp"

#include <gtest/gtest.h>

namespace gpushm::base {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t gib = 1024 * mib;
constexpr std::uint64_t tib = 1024 * gib;

TEST(parse_size, reads_whole_numbers_of_bytes) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"0", 0},
      {"1", 1},
      {"4096", 4096},
      {"007", 7},
      {"1B", 1},
      {"512 B", 512},
      {"64MiB", 64 * mib},
      {"64 MiB", 64 * mib},
      {"64mib", 64 * mib},
      {"64M", 64 * mib},
      {"64m", 64 * mib},
      {"1.5GiB", gib + 512 * mib},
      {"1.GiB", gib},
      {".5KiB", 512},
      {"0.5kib", 512},
      {"1.0", 1},
      {"10kB", 10'000},
      {"10KB", 10'000},
      {"10K", 10 * kib},
      {"2MB", 2'000'000},
      {"1.5GB", 1'500'000'000},
      {"0.001kB", 1},
      {"3TiB", 3 * tib},
      {"3T", 3 * tib},
      {"1TB", 1'000'000'000'000},
      {"0.0009765625KiB", 1},
      {"18446744073709551615", UINT64_MAX},
      {"16777215.9990234375TiB", UINT64_MAX - gib + 1},
  };
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(parse_size(text), bytes) << text;
  }
}

TEST(parse_size, rejects_everything_else) {
  for (const char* text : {"",
                           " ",
                           ".",
                           "B",
                           "KiB",
                           ".KiB",
                           "-1",
                           "+1",
                           " 1",
                           "1  MiB",
                           "1\tMiB",
                           "1MiB ",
                           "1.5.5",
                           "1,5GiB",
                           "0x10",
                           "1e3",
                           "1PiB",
                           "1Ki",
                           "1bytes",
                           "64mb",
                           "64Mb",
                           "64mB",
                           "1kb",
                           "1gb",
                           "1tB",
                           "0.3B",
                           "0.3",
                           "1.0001kB",
                           "0.0001KiB",
                           "18446744073709551616",
                           "16777216TiB",
                           "16777216.0TiB",
                           "99999999999999999999999999",
                           "340282366920938463463374607431768211456",
                           "99999999999999999999999999999999999999999999TiB",
                           "0.00000000000000000000000000001TiB"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(size_text, is_readable) {
  const std::pair<std::uint64_t, const char*> cases[] = {
      {0, "0 B"},
      {1, "1 B"},
      {100, "100 B"},
      {1023, "1023 B"},
      {kib, "1 KiB"},
      {1536, "1.5 KiB"},
      {10 * kib, "10 KiB"},
      {mib - 1, "1 MiB"},
      {64 * mib, "64 MiB"},
      {100 * mib, "100 MiB"},
      {gib + 512 * mib, "1.5 GiB"},
      {gib + gib / 3, "1.33 GiB"},
      {gib - 1, "1 GiB"},
      {tib, "1 TiB"},
      {UINT64_MAX, "16777216 TiB"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(size_text(bytes), text) << bytes;
  }
}

}  // namespace
}  // namespace gpushm::base
