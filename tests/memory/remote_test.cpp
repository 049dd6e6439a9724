// SPDX-License-Identifier: Apache-2.0
// Existing memory: how it is identified, and what a process may accept from another.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/page_size.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/memory/sources/proc_maps.hpp"
#include "gpu/memory/sources/remote_memory.hpp"
#include "gpu/memory/sources/shared_table.hpp"
#include "gpu/memory/sources/source.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {
namespace {

using namespace std::chrono_literals;

const std::uint64_t page = base::host_page_bytes();
constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

template <typename Call>
std::string error_of(Call&& call, errc expected) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_EQ(to_string(why.code()), to_string(expected));
    return why.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

// ---- find_mapped_file ----

// Two adjacent mappings of one memfd with contiguous offsets, a gap, a private mapping, another
// file at a contiguous offset, the same memfd at a non-contiguous one, a file, the heap.
const std::string maps =
    "55d0c0000000-55d0c0002000 rw-p 00000000 00:00 0                          [heap]\n"
    "7f0000000000-7f0000004000 rw-s 00000000 00:01 1234                       /memfd:kv (deleted)\n"
    "7f0000004000-7f0000008000 r--s 00004000 00:01 1234                       /memfd:kv (deleted)\n"
    "7f0000008000-7f000000a000 rw-s 00009000 00:01 1234                       /memfd:kv (deleted)\n"
    "7f000000a000-7f000000c000 rw-s 0000b000 00:01 1235                       /memfd:kv (deleted)\n"
    "7f0000010000-7f0000012000 rw-p 00000000 00:01 1234                       /memfd:kv (deleted)\n"
    "7f0000012000-7f0000014000 rw-s 00002000 00:01 1234                       /memfd:kv (deleted)\n"
    "7f0000020000-7f0000022000 r--s 00001000 fe:02 77                         /tmp/a file\n"
    "7f0000030000-7f0000032000 rw-p 00000000 00:00 0 \n"
    "7ffd10000000-7ffd10021000 rw-p 00000000 00:00 0                          [stack]\n";

std::optional<mapped_file> file_at(std::uint64_t first,
                                   std::uint64_t end,
                                   const std::string& text) {
  std::istringstream lines(text);
  return find_mapped_file(lines, first, end);
}
std::optional<mapped_file> file_at(std::uint64_t first, std::uint64_t end) {
  return file_at(first, end, maps);
}

void expect_memfd(const std::optional<mapped_file>& file, std::uint64_t offset) {
  ASSERT_TRUE(file);
  EXPECT_EQ(file->device, makedev(0, 1));
  EXPECT_EQ(file->inode, 1234U);
  EXPECT_EQ(file->offset_bytes, offset);
  EXPECT_TRUE(file->is_memfd);
  EXPECT_TRUE(file->shared);
}

TEST(mapped_files, are_found_at_first_and_last_byte) {
  expect_memfd(file_at(0x7f0000000000, 0x7f0000004000), 0);
  expect_memfd(file_at(0x7f0000000000, 0x7f0000000001), 0);
  expect_memfd(file_at(0x7f0000003fff, 0x7f0000004000), 0x3fff);
  expect_memfd(file_at(0x7f0000001234, 0x7f0000001235), 0x1234);
  expect_memfd(file_at(0x7f0000005000, 0x7f0000006000), 0x5000);
}

TEST(mapped_files, may_be_mapped_in_pieces) {
  expect_memfd(file_at(0x7f0000000000, 0x7f0000008000), 0);
  expect_memfd(file_at(0x7f0000003fff, 0x7f0000004001), 0x3fff);
}

TEST(mapped_files, must_cover_range_at_contiguous_offsets) {
  EXPECT_FALSE(file_at(0x7f0000007fff, 0x7f0000008001)) << "0x8000 is skipped in the file";
  EXPECT_FALSE(file_at(0x7f0000009fff, 0x7f000000a001)) << "another memfd at a contiguous offset";
  EXPECT_FALSE(file_at(0x7f000000b000, 0x7f0000010001)) << "a gap";
  EXPECT_FALSE(file_at(0x7f000000bfff, 0x7f000000c001)) << "ends in a gap";
  EXPECT_FALSE(file_at(0x7effffffffff, 0x7f0000000001)) << "begins in a gap";
  EXPECT_FALSE(file_at(0x7f000000d000, 0x7f000000e000)) << "in a gap";
  EXPECT_FALSE(file_at(0x7f0000011fff, 0x7f0000012001)) << "private and shared";
  EXPECT_FALSE(file_at(0x7ffe00000000, 0x7ffe00001000)) << "after all mappings";
  EXPECT_FALSE(file_at(0x1000, 0x2000)) << "before all mappings";
  EXPECT_FALSE(file_at(0x55d0c0000000, 0x55d0c0001000)) << "the heap has no file";
  EXPECT_FALSE(file_at(0x7f0000030000, 0x7f0000031000)) << "no file";
  EXPECT_FALSE(file_at(0x7f0000000000, 0x7f0000001000, ""));
}

TEST(mapped_files, have_device_inode_and_offset) {
  const auto file = file_at(0x7f0000020000, 0x7f0000022000);
  ASSERT_TRUE(file);
  EXPECT_FALSE(file->is_memfd);
  EXPECT_TRUE(file->shared);
  EXPECT_EQ(file->device, makedev(0xfe, 2)) << "hexadecimal";
  EXPECT_EQ(file->inode, 77U) << "decimal";
  EXPECT_EQ(file->offset_bytes, 0x1000U);
  const auto private_one = file_at(0x7f0000010000, 0x7f0000012000);
  ASSERT_TRUE(private_one);
  EXPECT_TRUE(private_one->is_memfd);
  EXPECT_FALSE(private_one->shared);
}

TEST(mapped_files, of_different_kinds_are_different) {
  const std::string first = "1000-2000 rw-s 00000000 00:01 9 /memfd:kv (deleted)\n";
  EXPECT_TRUE(
      file_at(0x1000, 0x3000, first + "2000-3000 rw-s 00001000 00:01 9 /memfd:kv (deleted)"));
  EXPECT_FALSE(file_at(0x1000, 0x3000, first + "2000-3000 rw-s 00001000 00:01 9 /dev/shm/kv"));
  EXPECT_FALSE(
      file_at(0x1000, 0x3000, first + "2000-3000 rw-p 00001000 00:01 9 /memfd:kv (deleted)"));
  EXPECT_FALSE(
      file_at(0x1000, 0x3000, first + "2000-3000 rw-s 00001000 00:02 9 /memfd:kv (deleted)"));
  EXPECT_FALSE(
      file_at(0x1000, 0x3000, first + "2000-3000 rw-s 00001000 01:01 9 /memfd:kv (deleted)"));
}

TEST(mapped_files, malformed_lines_are_ignored) {
  const std::string good = "1000-2000 rw-s 00000000 00:01 9 /memfd:kv (deleted)\n";
  for (const char* bad : {"",
                          "\n",
                          "nonsense\n",
                          "1000\n",
                          "1000-\n",
                          "1000-2000\n",
                          "1000-2000 rw-s\n",
                          "1000-2000 rw-s 0\n",
                          "1000-2000 rw-s 0 00:01\n",
                          "1000-2000 rw-s 0 00:01 x /memfd:kv\n",
                          "1000-2000 rw-s zz 00:01 9 /memfd:kv\n",
                          "fffffffffffffffff-2000 rw-s 0 00:01 9 /memfd:kv\n",
                          "VmFlags: rd wr sh\n"}) {
    EXPECT_FALSE(file_at(0x1000, 0x2000, bad)) << bad;
    expect_memfd(
        file_at(
            0x1000, 0x2000, std::string(bad) + "1000-2000 rw-s 00000000 00:01 1234 /memfd:kv\n"),
        0);
  }
  const auto short_rights = file_at(0x1000, 0x2000, "1000-2000 s 00000000 00:01 9 /memfd:kv\n");
  EXPECT_TRUE(!short_rights || !short_rights->shared);
  const auto no_path = file_at(0x1000, 0x2000, "1000-2000 rw-s 00000000 00:01 9\n");
  EXPECT_TRUE(!no_path || !no_path->is_memfd);
  EXPECT_TRUE(file_at(0x1000, 0x2000, good));
}

// ---- usable_handle ----

constexpr std::int32_t own_pid = 0x01020304;

remote_memory legacy(std::optional<std::uint16_t> pid_offset, std::int32_t pid_in_handle) {
  remote_memory memory;
  for (std::size_t i = 0; i < memory.handle.size(); ++i) {
    memory.handle.at(i) = static_cast<std::byte>(0x80 + i);
  }
  memory.pid_offset = pid_offset;
  if (pid_offset && *pid_offset <= 60) {
    std::memcpy(memory.handle.data() + *pid_offset, &pid_in_handle, sizeof pid_in_handle);
  }
  memory.exporter.pid = pid_in_handle;
  return memory;
}

TEST(usable_handles, are_rewritten_only_for_own_pid) {
  for (const std::uint16_t offset : std::initializer_list<std::uint16_t>{0, 4, 7, 59, 60}) {
    SCOPED_TRACE(offset);
    const auto equal = legacy(offset, own_pid);
    const auto rewritten = usable_handle("kv", equal, own_pid);
    for (std::size_t i = 0; i < rewritten.size(); ++i) {
      const bool of_pid = i >= offset && i < offset + 4U;
      EXPECT_EQ(rewritten.at(i), of_pid ? std::byte{0} : equal.handle.at(i)) << i;
    }
    for (const std::int32_t others : {own_pid + 1, own_pid ^ 0x01000000, 0, -1, 0x04030201}) {
      const auto memory = legacy(offset, others);
      EXPECT_EQ(usable_handle("kv", memory, own_pid), memory.handle) << others;
    }
  }
}

TEST(usable_handles, use_pid_in_handle_if_offset_is_known) {
  auto memory = legacy(4, 99);
  memory.exporter.pid = own_pid;  // the rest of the ticket is irrelevant
  EXPECT_EQ(usable_handle("kv", memory, own_pid), memory.handle);
  memory = legacy(4, own_pid);
  memory.exporter.pid = 99;
  EXPECT_NE(usable_handle("kv", memory, own_pid), memory.handle);
}

TEST(usable_handles, of_unknown_layout_fail_only_on_equal_pids) {
  const std::string text =
      "open \"kv\": the exporter is PID 16909060 in its PID namespace as this process is in its "
      "own, and the layout of its driver's legacy handles is unknown (share memory that "
      "travels as descriptors (cuMemCreate, expandable segments), or give both one PID namespace "
      "(shareProcessNamespace))";
  for (const std::optional<std::uint16_t> offset : {std::optional<std::uint16_t>(),
                                                    std::optional<std::uint16_t>(61),
                                                    std::optional<std::uint16_t>(64),
                                                    std::optional<std::uint16_t>(65'535)}) {
    SCOPED_TRACE(offset.value_or(0));
    EXPECT_EQ(
        error_of([&] { static_cast<void>(usable_handle("kv", legacy(offset, own_pid), own_pid)); },
                 errc::pid_collision),
        text);
    const auto others = legacy(offset, own_pid + 1);
    EXPECT_EQ(usable_handle("kv", others, own_pid), others.handle);
  }
}

// ---- shared_table ----

struct counted {
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> created{0};
  static inline std::atomic<int> most{0};
  explicit counted(std::function<void()> on_end = {}) : on_end_(std::move(on_end)) {
    ++created;
    const int now = ++alive;
    int before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
  }
  counted(const counted&) = delete;
  counted& operator=(const counted&) = delete;
  ~counted() {
    if (on_end_) {
      on_end_();
    }
    --alive;
  }
  static void reset() { alive = created = most = 0; }

 private:
  std::function<void()> on_end_;
};
using counted_table = shared_table<int, counted>;

TEST(shared_tables, create_once_for_all_threads_and_destroy_after_last) {
  counted::reset();
  counted_table table;
  constexpr int threads = 10;
  std::barrier start(threads);
  std::vector<std::future<std::shared_ptr<counted>>> results;
  for (int i = 0; i < threads; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      start.arrive_and_wait();
      return table.find_or_make(1, [] { return std::make_unique<counted>(); });
    }));
  }
  std::vector<std::shared_ptr<counted>> users;
  for (auto& each : results) {
    users.push_back(each.get());
  }
  for (const auto& each : users) {
    EXPECT_EQ(each, users.front());
  }
  EXPECT_EQ(counted::created, 1);
  const auto other = table.find_or_make(2, [] { return std::make_unique<counted>(); });
  EXPECT_NE(other, users.front());
  EXPECT_EQ(counted::created, 2);
  for (int i = 1; i < threads; ++i) {
    users.pop_back();
    EXPECT_EQ(counted::alive, 2);
  }
  users.clear();
  EXPECT_EQ(counted::alive, 1) << "the other key's";
  const auto again = table.find_or_make(1, [] { return std::make_unique<counted>(); });
  EXPECT_EQ(counted::created, 3);
}

TEST(shared_tables, never_have_two_values_of_a_key) {
  counted::reset();
  counted_table table;
  constexpr int threads = 4;
  constexpr int rounds = 500;
  std::barrier start(threads);
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      start.arrive_and_wait();
      for (int round = 0; round < rounds; ++round) {
        const auto mine = table.find_or_make(1, [] { return std::make_unique<counted>(); });
        EXPECT_EQ(counted::alive, 1);
      }
    });
  }
  workers.clear();
  EXPECT_EQ(counted::alive, 0);
  EXPECT_EQ(counted::most, 1);
  EXPECT_GE(counted::created, 1);
  EXPECT_LE(counted::created, threads * rounds);
}

TEST(shared_tables, create_only_after_previous_is_destroyed) {
  counted::reset();
  counted_table table;
  std::promise<void> ending;
  std::promise<void> may_end;
  auto may_end_future = may_end.get_future();
  auto first = table.find_or_make(1, [&] {
    return std::make_unique<counted>([&] {
      ending.set_value();
      EXPECT_EQ(may_end_future.wait_for(10s), std::future_status::ready);
    });
  });
  auto ender = std::async(std::launch::async, [&] { first.reset(); });
  ASSERT_EQ(ending.get_future().wait_for(10s), std::future_status::ready);
  auto next = std::async(std::launch::async, [&] {
    return table.find_or_make(1, [] {
      EXPECT_EQ(counted::alive, 0) << "the old value still exists";
      return std::make_unique<counted>();
    });
  });
  EXPECT_EQ(next.wait_for(50ms), std::future_status::timeout) << "must wait";
  EXPECT_EQ(counted::created, 1);
  may_end.set_value();
  ASSERT_EQ(next.wait_for(10s), std::future_status::ready);
  const auto created = next.get();
  ender.get();
  EXPECT_EQ(counted::created, 2);
  EXPECT_EQ(counted::alive, 1);
  EXPECT_EQ(table.find_or_make(1, [] { return std::make_unique<counted>(); }), created)
      << "destroying the old value must not remove the new one";
}

TEST(shared_tables, keep_no_entry_after_failed_creation) {
  counted::reset();
  counted_table table;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(static_cast<void>(table.find_or_make(
                     1,
                     []() -> std::unique_ptr<counted> {
                       throw error(errc::driver_error, "open", "kv", "it failed", "try again");
                     })),
                 error);
  }
  const auto other = table.find_or_make(2, [] { return std::make_unique<counted>(); });
  const auto created = table.find_or_make(1, [] { return std::make_unique<counted>(); });
  EXPECT_NE(created, other);
  EXPECT_EQ(counted::created, 2);
}

// ---- find_source on the host ----

class host_sources : public testing::Test {
 protected:
  host_sources() {
    // If there is a driver, it is queried first, and keeps its own descriptors from then on.
    static_cast<void>(driver::cuda_driver::try_instance());
    before_ = open_descriptors();
  }
  void TearDown() override { EXPECT_EQ(open_descriptors(), before_); }

  static base::unique_fd memfd(std::uint64_t bytes, int seals = all_seals) {
    base::unique_fd fd(::memfd_create("test-source", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    }
    return fd;
  }
  static base::unique_mapping map(const base::unique_fd& fd,
                                  std::uint64_t bytes,
                                  std::uint64_t offset = 0,
                                  int flags = MAP_SHARED) {
    void* const address =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd.get(), static_cast<off_t>(offset));
    EXPECT_NE(address, MAP_FAILED);
    return base::unique_mapping({address, bytes});
  }
  static std::byte* bytes_of(const base::unique_mapping& mapped) {
    return static_cast<std::byte*>(mapped.get().address);
  }
  static void expect_rejected(void* pointer,
                              std::uint64_t bytes,
                              errc code,
                              const std::string& text) {
    EXPECT_EQ(error_of([&] { static_cast<void>(find_source("kv", pointer, bytes)); }, code),
              "share \"kv\": " + text);
  }
  static void expect_not_exportable(void* pointer, std::uint64_t bytes, const std::string& text) {
    expect_rejected(pointer, bytes, errc::not_exportable, text);
  }

  const std::string private_text_ =
      "it is private host memory (malloc, new, pinned memory or a "
      "mapping that is not of a single memfd) (create a segment on device host and use its memory, "
      "or "
      "map a memfd that is sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL)";
  std::size_t before_ = 0;
};

TEST_F(host_sources, invalid_ranges_are_rejected) {
  const std::string next = " (pass the address and the size of existing memory)";
  int something = 0;
  expect_rejected(nullptr, 1, errc::invalid_argument, "the pointer is null" + next);
  expect_rejected(nullptr, 0, errc::invalid_argument, "the pointer is null" + next);
  expect_rejected(&something, 0, errc::invalid_argument, "the size is 0 bytes" + next);
  expect_rejected(&something,
                  std::numeric_limits<std::uint64_t>::max(),
                  errc::invalid_argument,
                  "the range does not fit into the address space" + next);
}

TEST_F(host_sources, private_memory_is_rejected) {
  std::vector<char> from_heap(1U << 20U);
  expect_not_exportable(from_heap.data(), from_heap.size(), private_text_);
  int on_stack = 0;
  expect_not_exportable(&on_stack, sizeof on_stack, private_text_);
  void* const anonymous =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(anonymous, MAP_FAILED);
  const base::unique_mapping owned({anonymous, page});
  expect_not_exportable(anonymous, page, private_text_);
  expect_not_exportable(reinterpret_cast<void*>(0x1000), page, private_text_);
  const std::string path = std::filesystem::temp_directory_path() / "gpushm-source-XXXXXX";
  std::string name = path;
  const base::unique_fd file(::mkostemp(name.data(), O_CLOEXEC));
  ::unlink(name.c_str());
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(page)), 0);
  expect_not_exportable(bytes_of(map(file, page)), page, private_text_);
}

TEST_F(host_sources, sealed_memfd_is_accepted_for_any_range) {
  const auto fd = memfd(4 * page);
  const auto mapped = map(fd, 4 * page);
  const struct {
    std::uint64_t offset;
    std::uint64_t size;
  } ranges[] = {{0, 4 * page}, {0, 1}, {1, 17}, {page - 1, 2}, {3 * page, page}, {4 * page - 1, 1}};
  for (const auto& range : ranges) {
    SCOPED_TRACE(std::to_string(range.offset) + " + " + std::to_string(range.size));
    const auto source = find_source("kv", bytes_of(mapped) + range.offset, range.size);
    EXPECT_EQ(source->kind(), gpushm::backend::host);
    EXPECT_EQ(source->device(), device_id{});
    EXPECT_EQ(source->address(), reinterpret_cast<std::uintptr_t>(bytes_of(mapped) + range.offset));
    EXPECT_EQ(source->size_bytes(), range.size);
    EXPECT_EQ(source->offset_bytes(), range.offset);
    EXPECT_EQ(source->allocated_bytes(), 4 * page);
    EXPECT_EQ(source->chunk_bytes(), std::vector<std::uint64_t>{4 * page});
    EXPECT_FALSE(source->remote());
    EXPECT_TRUE(source->unchanged());
    const auto chunk = source->export_chunk(0);
    ASSERT_TRUE(chunk);
    EXPECT_NE(chunk.get(), fd.get()) << "the caller keeps its descriptor";
    EXPECT_EQ(::fcntl(chunk.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    struct stat here {};
    struct stat there {};
    ASSERT_EQ(::fstat(fd.get(), &here), 0);
    ASSERT_EQ(::fstat(chunk.get(), &there), 0);
    EXPECT_EQ(here.st_ino, there.st_ino);
  }
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(host_sources, offsets_are_relative_to_file) {
  const auto fd = memfd(8 * page);
  const auto window = map(fd, 2 * page, 5 * page);
  const auto found = find_source("kv", bytes_of(window) + 100, page);
  EXPECT_EQ(found->offset_bytes(), 5 * page + 100);
  EXPECT_EQ(found->allocated_bytes(), 8 * page);
}

TEST_F(host_sources, may_be_mapped_in_pieces) {
  const auto fd = memfd(4 * page);
  const auto mapped = map(fd, 4 * page);
  // Different permissions for the middle: three lines of /proc/self/maps.
  ASSERT_EQ(::mprotect(bytes_of(mapped) + page, page, PROT_READ), 0);
  const auto source = find_source("kv", bytes_of(mapped) + 10, 3 * page);
  EXPECT_EQ(source->offset_bytes(), 10U);
  // A hole in the middle, then another file there.
  ASSERT_EQ(::munmap(bytes_of(mapped) + page, page), 0);
  expect_not_exportable(bytes_of(mapped), 3 * page, private_text_);
  const auto other = memfd(4 * page);
  ASSERT_NE(::mmap(bytes_of(mapped) + page,
                   page,
                   PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED,
                   other.get(),
                   static_cast<off_t>(page)),
            MAP_FAILED);
  expect_not_exportable(bytes_of(mapped), 3 * page, private_text_);
  EXPECT_EQ(find_source("kv", bytes_of(mapped), page)->offset_bytes(), 0U);
  EXPECT_EQ(find_source("kv", bytes_of(mapped) + page, page)->offset_bytes(), page);
}

TEST_F(host_sources, private_mapping_is_rejected) {
  const auto fd = memfd(page);
  const auto mapped = map(fd, page, 0, MAP_PRIVATE);
  expect_not_exportable(
      bytes_of(mapped), page, "the memfd is mapped with MAP_PRIVATE (map it with MAP_SHARED)");
}

TEST_F(host_sources, unsealed_memfd_is_rejected) {
  const std::string text =
      "the memfd is not sealed: any process that has it could shrink it while others use it (seal "
      "it with "
      "F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL)";
  for (const int seals :
       {0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL}) {
    const auto fd = memfd(page, seals);
    const auto mapped = map(fd, page);
    expect_not_exportable(bytes_of(mapped), page, text);
  }
}

TEST_F(host_sources, descriptor_must_be_open_for_writing) {
  const std::string text =
      "the mapped memfd is not open for reading and writing in this process (keep "
      "its descriptor open until the memory is shared)";
  auto fd = memfd(page);
  const auto mapped = map(fd, page);
  const auto similar = memfd(page);  // of the same name, size and seals
  const base::unique_fd read_only(
      ::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only);
  EXPECT_TRUE(find_source("kv", bytes_of(mapped), page));
  fd.reset();
  expect_not_exportable(bytes_of(mapped), page, text);
}

TEST_F(host_sources, range_must_be_within_file) {
  const auto fd = memfd(page + 100);
  const auto mapped = map(fd, 2 * page);
  EXPECT_TRUE(find_source("kv", bytes_of(mapped), page + 100));
  const std::string text = "the range exceeds the memfd, which has " + std::to_string(page + 100) +
                           " bytes (share a range within it)";
  expect_not_exportable(bytes_of(mapped), page + 101, text);
  expect_not_exportable(bytes_of(mapped) + page + 100, 1, text);
}

// ---- exports of this process ----

remote_memory exported(void* address, std::uint64_t bytes, std::uint64_t buffer_id) {
  remote_memory memory;
  memory.size_bytes = bytes;
  memory.allocated_bytes = bytes;
  memory.address = reinterpret_cast<std::uintptr_t>(address);
  memory.buffer_id = buffer_id;
  memory.exporter = base::this_process();
  return memory;
}

TEST(own_exports, open_as_pointer_while_shared) {
  std::vector<std::byte> bytes(64, std::byte{5});
  const auto memory = exported(bytes.data(), bytes.size(), 7);
  const std::string text =
      "open \"kv\": this process no longer shares that memory (share it again)";
  const auto open = [&](const remote_memory& remote_memory) {
    return open_own("kv", remote_memory);
  };
  EXPECT_EQ(error_of([&] { static_cast<void>(open(memory)); }, errc::gone_or_replaced), text);
  {
    const own_export shared(memory);
    const auto opened = open(memory);
    EXPECT_EQ(opened->data(), bytes.data());
    EXPECT_EQ(opened->mapped_bytes(), 64U);
    EXPECT_TRUE(opened->usable());
    std::byte read{};
    opened->read(63, {&read, 1});
    EXPECT_EQ(read, std::byte{5});
    opened->fill(1, 2, std::byte{9});
    EXPECT_EQ(bytes[0], std::byte{5});
    EXPECT_EQ(bytes[2], std::byte{9});

    // Anything else that this process did not export could point anywhere into it.
    for (const auto& wrong : {exported(bytes.data() + 1, bytes.size(), 7),
                              exported(bytes.data(), bytes.size() + 1, 7),
                              exported(bytes.data(), bytes.size() - 1, 7),
                              exported(bytes.data(), bytes.size(), 8)}) {
      EXPECT_EQ(error_of([&] { static_cast<void>(open(wrong)); }, errc::gone_or_replaced), text);
    }
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(open(memory)); }, errc::gone_or_replaced), text);
  EXPECT_EQ(bytes[2], std::byte{9}) << "the owner keeps the memory";
}

TEST(own_exports, are_counted) {
  std::byte one{};
  const auto memory = exported(&one, 1, 7);
  auto first = std::make_optional<own_export>(memory);
  auto second = std::make_optional<own_export>(memory);
  first.reset();
  const auto opened = open_own("kv", memory);
  EXPECT_EQ(opened->data(), &one);
  EXPECT_EQ(
      error_of([&] { opened->suspend(); }, errc::not_supported),
      "suspend: memory of this kind cannot be unmapped and mapped again at its address (suspend "
      "segments of the backends cuda-vmm and host only)");
  EXPECT_FALSE(opened->suspended());
  second.reset();
  EXPECT_EQ(error_of([&] { static_cast<void>(open_own("kv", memory)); }, errc::gone_or_replaced),
            "open \"kv\": this process no longer shares that memory (share it again)");
}

TEST(own_exports, belong_to_this_process) {
  std::byte one{};
  auto memory = exported(&one, 1, 7);
  EXPECT_TRUE(is_own(memory));
  ++memory.exporter.epoch[0];
  EXPECT_FALSE(is_own(memory)) << "a forked child, or a later process with the same number";
  memory = exported(&one, 1, 7);
  ++memory.exporter.pid_namespace;
  EXPECT_FALSE(is_own(memory));
}

TEST(other_machines, are_recognised_by_boot_id) {
  auto exporter = base::this_process();
  ASSERT_FALSE(exporter.boot_id.empty()) << "/proc is not mounted";
  EXPECT_NO_THROW(check_same_machine("kv", exporter));
  const std::string here = std::exchange(exporter.boot_id, "another");
  EXPECT_EQ(error_of([&] { check_same_machine("kv", exporter); }, errc::peer_unreachable),
            "open \"kv\": it was shared on another machine, or before this machine was rebooted "
            "(boot id another, here " +
                here + ") (share and open memory on the same machine)");
  exporter.boot_id.clear();
  EXPECT_NO_THROW(check_same_machine("kv", exporter)) << "an unknown boot id proves nothing";
}

}  // namespace
}  // namespace gpushm::memory
