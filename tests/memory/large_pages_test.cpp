// SPDX-License-Identifier: Apache-2.0
// Host memory on a kernel with 64 KiB pages, simulated through sysconf.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "gpu/memory/backends/backend.hpp"
#include "tests/support/process/given_chunks.hpp"

namespace {
constexpr long large_page = 65'536;
}  // namespace

// The linker substitutes these for sysconf and the C library's function (--wrap).
// NOLINTBEGIN(bugprone-reserved-identifier): names required by the linker
extern "C" long __real_sysconf(int name) noexcept;

extern "C" long __wrap_sysconf(int name) noexcept;
long __wrap_sysconf(int name) noexcept {
  return name == _SC_PAGESIZE ? large_page : __real_sysconf(name);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace gpushm::memory {
namespace {

TEST(large_pages, chunks_can_be_mapped) {
  const auto host = backend_for_create("host", false);
  EXPECT_EQ(host->granularity(), static_cast<std::uint64_t>(large_page));
  const auto plan = plan_chunks(3 * large_page, 4096, host->granularity());
  EXPECT_EQ(plan.chunk_bytes, static_cast<std::uint64_t>(large_page));
  EXPECT_EQ(plan.count, 3U);
  const auto created = host->allocate("kv", plan, std::chrono::steady_clock::time_point::max());
  std::memset(created->data(), 1, created->mapped_bytes());

  gpushm_testing::given_chunks chunks;
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    chunks.add(created->export_chunk(i), plan.size_of(i));
  }
  const auto seen = host->import({"kv", plan.total_bytes(), access::read}, chunks);
  EXPECT_EQ(seen->mapped_bytes(), 3U * large_page);
  EXPECT_EQ(std::memcmp(seen->data(), created->data(), created->mapped_bytes()), 0);
}

}  // namespace
}  // namespace gpushm::memory
