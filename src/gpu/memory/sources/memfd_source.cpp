// SPDX-License-Identifier: Apache-2.0
// Host memory mapped from a memfd: the only kind of host memory that another process can map.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <string>
#include <utility>

#include "base/files/syscall.hpp"
#include "gpu/memory/backends/host_backend.hpp"
#include "gpu/memory/sources/proc_maps.hpp"
#include "gpu/memory/sources/source_kinds.hpp"
#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

constexpr std::string_view host_remedy =
    "create a segment on device host and use its memory, or map a memfd that is sealed with "
    "F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL";

/// Whether `fd` is the mapped memfd, open for reading and writing.
bool is_file(int fd, const mapped_file& file) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_ino == file.inode && info.st_dev == file.device &&
         S_ISREG(info.st_mode) && ::fcntl(fd, F_GET_SEALS) != -1 &&
         (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

/// A descriptor of this process for the mapped file; empty if none is open.
base::guarded_fd find_descriptor(const mapped_file& file) {
  DIR* const listing = ::opendir("/proc/self/fd");
  if (listing == nullptr) {
    return {};
  }
  base::guarded_fd descriptor;
  while (const dirent* const entry = ::readdir(listing)) {  // NOLINT(concurrency-mt-unsafe): local
    int number = -1;
    const std::string_view text = entry->d_name;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
      continue;
    }
    if (!is_file(number, file)) {
      continue;
    }
    descriptor = base::guarded_fd::open([&] { return ::fcntl(number, F_DUPFD_CLOEXEC, 0); });
    // Another thread may have closed it and opened another file with the same number.
    if (descriptor && is_file(descriptor.get(), file)) {
      break;
    }
    descriptor.reset();
  }
  ::closedir(listing);
  return descriptor;
}

class memfd_source final : public source {
 public:
  memfd_source(std::uint64_t address,
               std::uint64_t size_bytes,
               base::guarded_fd file,
               std::uint64_t file_bytes,
               std::uint64_t offset_bytes)
      : source(address, size_bytes),
        file_(std::move(file)),
        chunk_bytes_{file_bytes},
        offset_bytes_(offset_bytes) {}

  [[nodiscard]] gpushm::backend kind() const noexcept override { return gpushm::backend::host; }
  [[nodiscard]] const device_id& device() const noexcept override { return device_; }
  [[nodiscard]] std::uint64_t offset_bytes() const noexcept override { return offset_bytes_; }
  [[nodiscard]] const std::vector<std::uint64_t>& chunk_bytes() const noexcept override {
    return chunk_bytes_;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const noexcept override {
    return chunk_bytes_.front();
  }
  [[nodiscard]] base::guarded_fd export_chunk(std::uint32_t /*index*/) override {
    return std::move(file_);
  }

 private:
  base::guarded_fd file_;
  device_id device_;
  std::vector<std::uint64_t> chunk_bytes_;
  std::uint64_t offset_bytes_;
};

}  // namespace

std::unique_ptr<source> find_memfd(std::string_view name, void* pointer, std::uint64_t size_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::ifstream maps("/proc/self/maps");
  const auto file = find_mapped_file(maps, address, address + size_bytes);
  if (!file || !file->is_memfd) {
    refuse(name,
           "it is private host memory (malloc, new, pinned memory or a "
           "mapping that is not of a single memfd)",
           host_remedy);
  }
  if (!file->shared) {
    refuse(name, "the memfd is mapped with MAP_PRIVATE", "map it with MAP_SHARED");
  }
  base::guarded_fd descriptor = find_descriptor(*file);
  if (!descriptor) {
    refuse(name,
           "the mapped memfd is not open for reading and writing in this process",
           "keep its descriptor open until the memory is shared");
  }
  struct stat info {};
  base::checked("share", name, "fstat", [&] { return ::fstat(descriptor.get(), &info); });
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  if (!is_sealed_memfd(descriptor.get(), file_bytes)) {
    refuse(name,
           "the memfd is not sealed: any process that has it could shrink it while others use it",
           "seal it with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL");
  }
  if (file->offset_bytes > file_bytes || size_bytes > file_bytes - file->offset_bytes) {
    refuse(name,
           "the range exceeds the memfd, which has " + std::to_string(file_bytes) + " bytes",
           "share a range within it");
  }
  return std::make_unique<memfd_source>(
      address, size_bytes, std::move(descriptor), file_bytes, file->offset_bytes);
}

}  // namespace gpushm::memory
