// SPDX-License-Identifier: Apache-2.0
// Host memory on a kernel with pages of 64 KiB, as far as this one can play it: sysconf says so.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "memory/backend.hpp"

namespace {
constexpr long large_page = 65'536;
}  // namespace

extern "C" long sysconf(int name) noexcept {
  if (name == _SC_PAGESIZE) {
    return large_page;
  }
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) {
    return 2;
  }
  errno = EINVAL;
  return -1;
}

namespace gpushm::memory {
namespace {

TEST(large_pages, cut_segments_into_chunks_that_can_be_mapped) {
  const auto host = backend_for_create("host", false);
  EXPECT_EQ(host->granularity(), static_cast<std::uint64_t>(large_page));
  const auto plan = plan_chunks(3 * large_page, 4096, host->granularity());
  EXPECT_EQ(plan.chunk_bytes, static_cast<std::uint64_t>(large_page));
  EXPECT_EQ(plan.count, 3U);
  const auto made = host->allocate("kv", plan, std::chrono::steady_clock::time_point::max());
  std::memset(made->data(), 1, made->mapped_bytes());
}

}  // namespace
}  // namespace gpushm::memory
