// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/chunk_plan.hpp"

#include <gtest/gtest.h>

#include "gpushm/error.hpp"

namespace gpushm::memory {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t large_page = 65'536;
constexpr std::uint64_t mib = 1024 * 1024;
constexpr std::uint64_t half = std::uint64_t{1} << 63U;

TEST(chunk_plan, splits_size_into_granularity_multiples) {
  struct {
    std::uint64_t size, chunk, granularity;
    std::uint64_t first, last;
    std::uint32_t count;
  } const cases[] = {
      {1, 0, page, page, page, 1},
      {page, 0, page, page, page, 1},
      {page + 1, 0, page, 2 * page, 2 * page, 1},
      {page, 1, page, page, page, 1},
      {3 * page, 1, page, page, page, 3},
      {3 * page - 1, page, page, page, page, 3},
      {1, 0, large_page, large_page, large_page, 1},
      {page, page, large_page, large_page, large_page, 1},
      {700 * page + 1, page, large_page, large_page, large_page, 44},
      {large_page + 1, 0, large_page, 2 * large_page, 2 * large_page, 1},
      {3 * large_page, large_page + 1, large_page, 2 * large_page, large_page, 2},
      {UINT64_MAX - large_page + 1, half, large_page, half, half - large_page, 2},
      {10 * mib, 4 * mib, 2 * mib, 4 * mib, 2 * mib, 3},
      {10 * mib, 3 * mib, 2 * mib, 4 * mib, 2 * mib, 3},
      {10 * mib, 10 * mib, 2 * mib, 10 * mib, 10 * mib, 1},
      {10 * mib, 64 * mib, 2 * mib, 10 * mib, 10 * mib, 1},
      {8'000 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 4'000},
      {5, 2, 1, 2, 1, 3},
      {UINT64_MAX - page + 1, 0, page, UINT64_MAX - page + 1, UINT64_MAX - page + 1, 1},
      {UINT32_MAX, 1, 1, 1, 1, UINT32_MAX},
      // The largest sizes: sums must not wrap.
      {UINT64_MAX - page + 1, half, page, half, half - page, 2},
      {UINT64_MAX, half, 1, half, half - 1, 2},
      {UINT64_MAX, UINT64_MAX - 1, 1, UINT64_MAX - 1, 1, 2},
  };
  for (const auto& each : cases) {
    const chunk_plan plan = plan_chunks(each.size, each.chunk, each.granularity);
    EXPECT_EQ(plan.chunk_bytes, each.first) << each.size << ' ' << each.chunk;
    EXPECT_EQ(plan.last_chunk_bytes, each.last) << each.size << ' ' << each.chunk;
    EXPECT_EQ(plan.count, each.count) << each.size << ' ' << each.chunk;
    EXPECT_GE(plan.total_bytes(), each.size);
    EXPECT_EQ(plan.size_of(plan.count - 1), each.last);
    EXPECT_EQ(plan.size_of(0), plan.count == 1 ? each.last : each.first);
  }
}

TEST(chunk_plan, rejects_invalid_sizes) {
  struct {
    std::uint64_t size, chunk, granularity;
    const char* text;
  } const cases[] = {
      {0, 0, page, "create: the size is 0 bytes (give a size of at least 1 byte)"},
      {UINT64_MAX,
       0,
       page,
       "create: the size does not fit into 64 bits once rounded up (give a smaller size)"},
      {UINT64_MAX - large_page + 2,
       0,
       large_page,
       "create: the size does not fit into 64 bits once rounded up (give a smaller size)"},
      {1,
       UINT64_MAX,
       page,
       "create: the size does not fit into 64 bits once rounded up (give a smaller size)"},
      {std::uint64_t{1} << 32U,
       1,
       1,
       "create: the segment would need 4294967296 chunks (use larger chunks)"},
      {UINT64_MAX,
       1,
       1,
       "create: the segment would need 18446744073709551615 chunks (use larger chunks)"},
      {UINT64_MAX,
       2,
       1,
       "create: the segment would need 9223372036854775808 chunks (use larger chunks)"},
  };
  for (const auto& each : cases) {
    try {
      static_cast<void>(plan_chunks(each.size, each.chunk, each.granularity));
      ADD_FAILURE() << each.text;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::invalid_argument);
      EXPECT_STREQ(why.what(), each.text);
    }
  }
}

}  // namespace
}  // namespace gpushm::memory
