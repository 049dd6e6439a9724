// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/host_backend.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/page_size.hpp"
#include "base/files/syscall.hpp"
#include "base/text/size_text.hpp"
#include "gpu/memory/backends/host_region.hpp"
#include "gpu/memory/backends/host_room.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

constexpr std::uint64_t huge_page_bytes = 2UL * 1024 * 1024;
/// Free memory is checked before every segment of at least this size, and once per this many bytes
/// of smaller segments, which take less time than the check. The kernel itself charges a cgroup for
/// as much memory per CPU in advance.
constexpr std::uint64_t check_interval_bytes = 256UL * 1024;
constexpr int chunk_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

class host_range final : public address_range {
 public:
  host_range(std::string_view operation,
             std::string_view name,
             std::uint64_t total_bytes,
             gpushm::access access)
      : operation_(operation), name_(name), total_bytes_(total_bytes), access_(access) {
    // Includes room to begin on a huge page, as MAP_FIXED mappings of huge pages require. Another
    // process may have chosen the total: if the sum wrapped, chunks, which are mapped at fixed
    // addresses, would replace other mappings after it.
    if (total_bytes > std::numeric_limits<std::uint64_t>::max() - huge_page_bytes) {
      throw error(errc::out_of_memory,
                  operation_,
                  name_,
                  std::to_string(total_bytes) + " bytes do not fit into the address space",
                  "use a smaller size");
    }
    const std::uint64_t room = total_bytes + huge_page_bytes;
    void* address =
        ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
      base::throw_errno(errno, operation_, name_, "mmap");
    }
    room_ = base::unique_mapping({address, room});
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t skip = (huge_page_bytes - start % huge_page_bytes) % huge_page_bytes;
    first_ = static_cast<std::byte*>(address) + skip;
  }

  void append(int fd, std::uint64_t chunk_bytes) {
    const int protection = access_ == access::read ? PROT_READ : PROT_READ | PROT_WRITE;
    void* address =
        ::mmap(first_ + mapped_bytes_, chunk_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
      base::throw_errno(errno, operation_, name_, "mmap");
    }
    mapped_bytes_ += chunk_bytes;
  }

  void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) override {
    // Otherwise its creator could truncate it later, and the next access would raise SIGBUS.
    if (!is_sealed_memfd(chunk.get(), chunk_bytes)) {
      throw error(errc::wrong_descriptor_kind,
                  operation_,
                  name_,
                  "a chunk is not a sealed memfd of the announced size",
                  "the broker or the creator is broken or hostile; report it");
    }
    append(chunk.get(), chunk_bytes);
  }
  void allow_access() override {}  // each chunk is accessible at once
  void unmap() override {
    if (mapped_bytes_ == 0) {
      return;
    }
    // Replaces the chunks in one step: no other mapping can get the addresses.
    void* const address = ::mmap(first_,
                                 mapped_bytes_,
                                 PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                                 -1,
                                 0);
    if (address == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the macro is a cast
      base::throw_errno(errno, operation_, name_, "mmap");
    }
    mapped_bytes_ = 0;
  }

  [[nodiscard]] std::byte* data() const noexcept { return first_; }
  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept override { return total_bytes_; }
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept override { return mapped_bytes_; }

 private:
  std::string operation_;
  std::string name_;
  std::uint64_t total_bytes_;
  gpushm::access access_;
  base::unique_mapping room_;
  std::byte* first_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
};

class host_allocation final : public host_region<allocation, host_range> {
 public:
  /// `first` and `mapped_bytes` belong to `range`.
  host_allocation(host_range range,
                  std::byte* first,
                  std::uint64_t mapped_bytes,
                  std::vector<base::guarded_fd> chunks)
      : host_region(std::move(range), first, mapped_bytes), chunks_(std::move(chunks)) {}

  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t index) override {
    return std::move(chunks_.at(index));
  }
  void finish_exports() noexcept override { chunks_.clear(); }

 private:
  std::vector<base::guarded_fd> chunks_;
};

/// Whether to check free memory before creating a segment of this size.
bool is_check_due(std::uint64_t total_bytes) noexcept {
  static std::atomic<std::uint64_t> unchecked_bytes{check_interval_bytes};  // of small segments
  if (total_bytes < check_interval_bytes &&
      unchecked_bytes.fetch_add(total_bytes, std::memory_order_relaxed) < check_interval_bytes) {
    return false;
  }
  unchecked_bytes.store(0, std::memory_order_relaxed);
  return true;
}

/// Allocates the memory of one segment, in pieces (host_room.hpp).
class host_allocator {
 public:
  host_allocator(std::string_view name,
                 std::uint64_t total_bytes,
                 bool huge_pages,
                 std::chrono::steady_clock::time_point deadline)
      : name_(name),
        total_bytes_(total_bytes),
        left_(total_bytes),
        huge_pages_(huge_pages),
        deadline_(deadline) {
    // Huge pages are reserved in advance; running out of them is an error.
    if (!huge_pages_ && is_check_due(total_bytes)) {
      bounds_.emplace();
      check_room();
    }
  }

  [[nodiscard]] base::guarded_fd make_chunk(std::uint64_t size_bytes) {
    const unsigned flags =
        MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge_pages_ ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
    auto fd = base::guarded_fd::open([&] {
      return base::checked(
          "create", name_, "memfd_create", [&] { return ::memfd_create("gpushm-chunk", flags); });
    });
    const auto size = static_cast<off_t>(size_bytes);
    base::checked("create", name_, "ftruncate", [&] { return ::ftruncate(fd.get(), size); });
    for (std::uint64_t done = 0; done < size_bytes;) {
      const std::uint64_t piece = std::min(piece_, size_bytes - done);
      allocate_piece(fd.get(), done, piece);
      done += piece;
    }
    base::checked("create", name_, "fcntl(F_ADD_SEALS)", [&] {
      return ::fcntl(fd.get(), F_ADD_SEALS, chunk_seals);
    });
    return fd;
  }

 private:
  /// ftruncate reserves no memory; without this the first access could raise SIGBUS.
  void allocate_piece(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    if (std::chrono::steady_clock::now() >= deadline_) {
      throw error(errc::timed_out,
                  "create",
                  name_,
                  "only " + base::size_text(total_bytes_ - left_) + " of " +
                      base::size_text(total_bytes_) + " could be allocated in time",
                  "use a longer request timeout, or a smaller size");
    }
    const int result = base::retry([&] {
      return ::fallocate(fd, 0, static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes));
    });
    if (result != 0) {
      const int number = errno;
      throw error(
          errc::out_of_memory,
          "create",
          name_,
          std::string(huge_pages_ ? "no huge pages are free: " : "no host memory is free: ") +
              base::errno_text(number),
          huge_pages_ ? "raise vm.nr_hugepages, or create without huge pages"
                      : "use a smaller size, or raise the cgroup's memory limit");
    }
    left_ -= size_bytes;
    if (left_ != 0) {
      check_room();
    }
  }

  /// Sets the size of the next piece. Throws if there is no room for the rest of the segment.
  void check_room() {
    const auto room = bounds_ ? find_host_room(*bounds_) : std::nullopt;
    if (!room) {
      return;
    }
    if (!has_room(*room, left_, total_bytes_)) {
      // Memory allocated so far is freed.
      throw error(errc::out_of_memory,
                  "create",
                  name_,
                  base::size_text(total_bytes_) + " do not fit: " + room->where + " has room for " +
                      base::size_text(total_bytes_ - left_ + largest_in(*room)),
                  room->next_step);
    }
    piece_ = piece_of(*room);
  }

  std::string name_;
  std::uint64_t total_bytes_;
  std::uint64_t left_;
  bool huge_pages_;
  std::chrono::steady_clock::time_point deadline_;
  std::optional<base::memory_bounds> bounds_;  // empty: not checked
  std::uint64_t piece_ = max_piece_bytes;
};

class host_importer final : public importer {
 public:
  explicit host_importer(const import_request& request)
      : offset_bytes_(request.offset_bytes),
        range_("open", request.name, request.total_bytes, request.access) {}

  void add(base::guarded_fd chunk, std::uint64_t chunk_bytes) override {
    range_.add(std::move(chunk), chunk_bytes);
  }
  [[nodiscard]] std::unique_ptr<region> finish() override {
    std::byte* const first = range_.data() + offset_bytes_;
    const std::uint64_t mapped_bytes = range_.mapped_bytes() - offset_bytes_;
    return std::make_unique<host_region<region, host_range>>(
        std::move(range_), first, mapped_bytes);
  }

 private:
  std::uint64_t offset_bytes_;
  host_range range_;
};

}  // namespace

bool is_sealed_memfd(int fd, std::uint64_t size_bytes) noexcept {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals != -1 && (seals & chunk_seals) == chunk_seals && ::fstat(fd, &info) == 0 &&
         static_cast<std::uint64_t>(info.st_size) == size_bytes;
}

std::uint64_t host_backend::granularity() const {
  return huge_pages_ ? huge_page_bytes : base::host_page_bytes();
}

std::unique_ptr<allocation> host_backend::allocate(
    std::string_view name,
    const chunk_plan& plan,
    std::chrono::steady_clock::time_point deadline) const {
  host_allocator memory(name, plan.total_bytes(), huge_pages_, deadline);
  host_range range("create", name, plan.total_bytes(), access::read_write);
  std::vector<base::guarded_fd> chunks;
  chunks.reserve(plan.count);
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    chunks.push_back(memory.make_chunk(plan.size_of(i)));
    range.append(chunks.back().get(), plan.size_of(i));
  }
  std::byte* const first = range.data();
  const std::uint64_t mapped_bytes = range.mapped_bytes();
  return std::make_unique<host_allocation>(
      std::move(range), first, mapped_bytes, std::move(chunks));
}

std::unique_ptr<importer> host_backend::begin_import(const import_request& request) const {
  return std::make_unique<host_importer>(request);
}

}  // namespace gpushm::memory
