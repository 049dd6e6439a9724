// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/host_backend.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/files/page_size.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/given_chunks.hpp"

namespace gpushm::memory {
namespace {

using gpushm_testing::given_chunks;

const std::uint64_t page = base::host_page_bytes();
constexpr auto no_deadline = std::chrono::steady_clock::time_point::max();
constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// Number of chunk mappings.
std::size_t chunk_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::size_t count = 0;
  while (std::getline(maps, line)) {
    count += line.find("memfd:gpushm-chunk") != std::string::npos ? 1U : 0U;
    count += line.find("memfd:test-chunk") != std::string::npos ? 1U : 0U;
  }
  return count;
}

std::uint64_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * page;
}

base::unique_fd memfd(std::uint64_t bytes, int seals = all_seals) {
  base::unique_fd fd(::memfd_create("test-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

class host_memory : public testing::Test {
 protected:
  host_memory() : descriptors_(open_descriptors()), mappings_(chunk_mappings()) {}
  void expect_nothing_left() const {
    EXPECT_EQ(open_descriptors(), descriptors_);
    EXPECT_EQ(chunk_mappings(), mappings_);
  }

  template <typename Call>
  static std::string error_of(Call&& call, errc expected) {
    try {
      call();
    } catch (const error& why) {
      EXPECT_EQ(to_string(why.code()), to_string(expected));
      return why.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  void import(std::uint64_t total_bytes, chunk_source& chunks) const {
    static_cast<void>(backend_.import({"kv", total_bytes, access::read}, chunks));
  }

  std::size_t descriptors_;
  std::size_t mappings_;
  host_backend backend_{false};
};

TEST_F(host_memory, chunks_are_contiguous_and_importable) {
  const chunk_plan plan = plan_chunks(10 * page, 3 * page, page);
  ASSERT_EQ(plan.count, 4U);
  {
    auto created = backend_.allocate("kv", plan, no_deadline);
    EXPECT_EQ(created->mapped_bytes(), 10 * page);
    auto* bytes = static_cast<unsigned char*>(created->data());
    for (std::uint64_t i = 0; i < 10 * page; ++i) {
      ASSERT_EQ(bytes[i], 0);
      bytes[i] = static_cast<unsigned char>(i / 7);
    }
    given_chunks chunks;
    for (std::uint32_t i = 0; i < plan.count; ++i) {
      auto chunk = created->export_chunk(i);
      EXPECT_EQ(::fcntl(chunk.get(), F_GET_SEALS) & all_seals, all_seals);
      struct stat info {};
      ASSERT_EQ(::fstat(chunk.get(), &info), 0);
      EXPECT_EQ(static_cast<std::uint64_t>(info.st_blocks) * 512, plan.size_of(i))
          << "not allocated";
      chunks.add(std::move(chunk), plan.size_of(i));
    }
    created->finish_exports();
    auto seen = backend_.import({"kv", plan.total_bytes(), access::read_write}, chunks);
    EXPECT_EQ(open_descriptors(), descriptors_) << "a mapping needs no descriptor";
    EXPECT_EQ(seen->mapped_bytes(), 10 * page);
    EXPECT_NE(seen->data(), created->data());
    EXPECT_EQ(std::memcmp(seen->data(), created->data(), 10 * page), 0);

    seen->fill(3 * page - 1, 2, std::byte{0xAB});
    EXPECT_EQ(bytes[3 * page - 2], static_cast<unsigned char>((3 * page - 2) / 7));
    EXPECT_EQ(bytes[3 * page - 1], 0xAB);
    EXPECT_EQ(bytes[3 * page], 0xAB);
    const std::byte text[3]{std::byte{1}, std::byte{2}, std::byte{3}};
    created->write(6 * page - 1, text);
    std::byte read[3]{};
    seen->read(6 * page - 1, read);
    EXPECT_EQ(std::memcmp(read, text, 3), 0);
    created.reset();
    EXPECT_EQ(static_cast<const unsigned char*>(seen->data())[3 * page], 0xAB)
        << "its creator is destroyed";
  }
  expect_nothing_left();
}

TEST_F(host_memory, destroyed_allocation_leaks_nothing) {
  const std::uint64_t before = address_space_bytes();
  for (std::uint32_t i = 0; i < 50; ++i) {
    auto created = backend_.allocate("kv", plan_chunks(64 * page, 16 * page, page), no_deadline);
    static_cast<void>(created->export_chunk(i % 4));
  }
  expect_nothing_left();
  EXPECT_LT(address_space_bytes(), before + 64 * 1024 * 1024);
}

TEST_F(host_memory, read_only_import_cannot_be_written) {
  auto created = backend_.allocate("kv", plan_chunks(page, 0, page), no_deadline);
  given_chunks chunks;
  chunks.add(created->export_chunk(0), page);
  const auto seen = backend_.import({"kv", page, access::read}, chunks);
  auto* bytes = static_cast<volatile unsigned char*>(seen->data());
  EXPECT_EQ(bytes[0], 0);
  // The kernel writes on behalf of this process: EFAULT instead of a signal.
  const base::unique_fd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(zero.get(), seen->data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(::read(zero.get(), created->data(), 1), 1);
}

TEST_F(host_memory, import_rejects_resizable_chunks) {
  struct {
    const char* what;
    std::uint64_t bytes;
    int seals;
  } const cases[] = {{"unsealed", page, 0},
                     {"can shrink", page, F_SEAL_GROW | F_SEAL_SEAL},
                     {"can grow", page, F_SEAL_SHRINK | F_SEAL_SEAL},
                     {"can be sealed", page, F_SEAL_SHRINK | F_SEAL_GROW},
                     {"smaller", page - 1, all_seals},
                     {"larger", 2 * page, all_seals},
                     {"empty", 0, all_seals}};
  for (const auto& each : cases) {
    given_chunks chunks;
    chunks.add(memfd(page), page);
    chunks.add(memfd(each.bytes, each.seals), page);
    EXPECT_EQ(error_of([&] { import(2 * page, chunks); }, errc::wrong_descriptor_kind),
              "open \"kv\": a chunk is not a sealed memfd of the announced size (the broker or the "
              "creator is broken or hostile; report it)")
        << each.what;
    expect_nothing_left();
  }
  given_chunks chunks;
  chunks.add(base::unique_fd(::open("/dev/null", O_RDWR | O_CLOEXEC)), page);
  chunks.add(base::unique_fd(), page);
  for (int i = 0; i < 2; ++i) {
    error_of([&] { import(page, chunks); }, errc::wrong_descriptor_kind);
  }
  expect_nothing_left();
}

TEST_F(host_memory, import_checks_total_size) {
  const auto rejection = [&](std::initializer_list<std::uint64_t> sizes) {
    given_chunks chunks;
    for (const std::uint64_t bytes : sizes) {
      chunks.add(memfd(bytes), bytes);
    }
    return error_of([&] { import(2 * page, chunks); }, errc::protocol_error);
  };
  const std::string smaller =
      "open \"kv\": the chunks are smaller than the segment (report this as a bug)";
  const std::string larger =
      "open \"kv\": the chunks are larger than the segment (report this as a bug)";
  EXPECT_EQ(rejection({}), smaller);
  EXPECT_EQ(rejection({page}), smaller);
  EXPECT_EQ(rejection({page, 2 * page}), larger);
  EXPECT_EQ(rejection({page, page, page}), larger);
  EXPECT_EQ(rejection({page, 0, page}), larger);
  expect_nothing_left();
}

/// A source that fails after the first chunk.
class broken_source final : public chunk_source {
 public:
  explicit broken_source(chunk first) : first_(std::move(first)) {}
  [[nodiscard]] std::optional<chunk> next() override {
    if (!first_.file) {
      throw error(errc::broker_gone, "open", "kv", "the broker has exited", "open it again");
    }
    return std::move(first_);
  }

 private:
  chunk first_;
};

TEST_F(host_memory, failed_import_leaks_nothing) {
  broken_source chunks({memfd(page), page});
  EXPECT_EQ(error_of([&] { import(2 * page, chunks); }, errc::broker_gone),
            "open \"kv\": the broker has exited (open it again)");
  expect_nothing_left();
}

// The creator chose the total. If the reserved size wrapped, a chunk mapped at a fixed address
// would replace other memory.
TEST_F(host_memory, import_above_address_space_is_out_of_memory) {
  for (const std::uint64_t total :
       {UINT64_MAX, UINT64_MAX - page + 1, UINT64_MAX - (2 << 20U) + 1}) {
    given_chunks none;
    error_of([&] { import(total, none); }, errc::out_of_memory);
  }
  expect_nothing_left();
}

TEST_F(host_memory, too_large_allocation_is_out_of_memory) {
  const std::uint64_t too_much = std::uint64_t{1} << 60U;
  error_of(
      [&] {
        static_cast<void>(backend_.allocate("kv", plan_chunks(too_much, 0, page), no_deadline));
      },
      errc::out_of_memory);
  expect_nothing_left();
}

TEST_F(host_memory, missing_huge_pages_are_reported) {
  const host_backend huge(true);
  EXPECT_EQ(huge.granularity(), 2U << 20U);
  std::uint64_t free_pages = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> free_pages;
  if (free_pages != 0) {
    GTEST_SKIP() << free_pages << " huge pages are free here";
  }
  const std::string text = error_of(
      [&] {
        static_cast<void>(huge.allocate("kv", plan_chunks(1, 0, huge.granularity()), no_deadline));
      },
      errc::out_of_memory);
  EXPECT_EQ(text.rfind("create \"kv\": no huge pages are free: ", 0), 0U) << text;
  EXPECT_NE(text.find("(raise vm.nr_hugepages, or create without huge pages)"), std::string::npos)
      << text;
  expect_nothing_left();
}

TEST(backend_choice, host_memory_rejects_incompatible_options) {
  EXPECT_EQ(backend_for_create("host", false)->kind(), gpushm::backend::host);
  EXPECT_EQ(backend_for_create("host", false)->granularity(), page);
  EXPECT_EQ(backend_for_open(gpushm::backend::host, {}, "")->kind(), gpushm::backend::host);
  EXPECT_EQ(backend_for_open(gpushm::backend::host, {}, "auto")->kind(), gpushm::backend::host);
  try {
    static_cast<void>(backend_for_create("auto", true));
    ADD_FAILURE();
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "create \"auto\": huge pages are for host segments only (disable huge pages, or "
                 "create on device host)");
  }
  try {
    static_cast<void>(backend_for_open(gpushm::backend::host, {}, "0"));
    ADD_FAILURE();
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "open \"0\": the segment is in host memory (open it without a device; register it "
                 "with CUDA to use it from a GPU)");
  }
}

}  // namespace
}  // namespace gpushm::memory
