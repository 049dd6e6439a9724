// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/gpu_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files/syscall.hpp"

namespace gpushm::fake {

namespace {
constexpr char magic_text[] = "gpushm-fake-mem";

// Random number of this process: handles carry it in addition to the PID, like the driver's client
// handle.
std::uint64_t process_number() {
  static const std::uint64_t number = [] {
    std::uint64_t created = 0;
    return ::getrandom(&created, sizeof(created), 0) == ssize_t{sizeof(created)} ? created : 0;
  }();
  return number;
}
}  // namespace

base::unique_fd make_gpu_file(const gpu_view& gpu, file_kind kind, std::uint64_t size_bytes) {
  base::unique_fd fd(base::retry(
      [&] { return ::open(gpu.directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666); }));
  file_header header;
  std::memcpy(header.magic, magic_text, sizeof(magic_text));
  header.kind = kind;
  header.exporter_pid = ::getpid();
  header.exporter = process_number();
  gpu.properties.uuid.copy(header.uuid, sizeof(header.uuid) - 1);
  header.size_bytes = size_bytes;
  // Other processes open it by name later, under any uid.
  const bool created =
      fd && ::fchmod(fd.get(), 0666) == 0 &&
      base::retry([&] {
        return ::fallocate(fd.get(), 0, 0, static_cast<off_t>(header_bytes() + size_bytes));
      }) == 0 &&
      ::pwrite(fd.get(), &header, sizeof(header), 0) == ssize_t{sizeof(header)};
  return created ? std::move(fd) : base::unique_fd();
}

bool allocate_range(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  return base::retry([&] {
           return ::fallocate(fd,
                              0,
                              static_cast<off_t>(header_bytes() + offset_bytes),
                              static_cast<off_t>(size_bytes));
         }) == 0;
}

std::optional<file_header> read_header(int fd) {
  file_header header;
  struct stat status {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR || ::fstat(fd, &status) != 0 ||
      !S_ISREG(status.st_mode) ||
      ::pread(fd, &header, sizeof(header), 0) != ssize_t{sizeof(header)} ||
      std::memcmp(header.magic, magic_text, sizeof(magic_text)) != 0) {
    return std::nullopt;
  }
  header.uuid[sizeof(header.uuid) - 1] = '\0';
  // Access to a truncated file would kill its users with SIGBUS.
  const auto whole = static_cast<std::uint64_t>(status.st_size);
  if (whole < header_bytes() || whole - header_bytes() < header.size_bytes) {
    return std::nullopt;
  }
  return header;
}

bool is_on(int fd, const gpu_view& gpu) {
  struct stat file {};
  struct stat directory {};
  return ::fstat(fd, &file) == 0 && ::stat(gpu.directory.c_str(), &directory) == 0 &&
         file.st_dev == directory.st_dev;
}

void* map_gpu_file(
    int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes, int protection, void* address) {
  void* const mapped = ::mmap(address,
                              size_bytes,
                              protection,
                              MAP_SHARED | (address == nullptr ? 0 : MAP_FIXED),
                              fd,
                              static_cast<off_t>(header_bytes() + offset_bytes));
  return mapped == MAP_FAILED ? nullptr : mapped;
}

void* map_gpu_file_aligned(int fd,
                           std::uint64_t size_bytes,
                           int protection,
                           std::uint64_t granularity_bytes) {
  const std::uint64_t room_bytes = size_bytes + granularity_bytes;
  void* const room =
      ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return nullptr;
  }
  auto* const start = static_cast<char*>(room);
  const auto past = reinterpret_cast<std::uintptr_t>(room) % granularity_bytes;
  const std::uint64_t before = past == 0 ? 0 : granularity_bytes - past;
  void* const mapped = map_gpu_file(fd, 0, size_bytes, protection, start + before);
  if (before > 0) {
    ::munmap(start, before);
  }
  ::munmap(start + before + size_bytes, granularity_bytes - before);
  if (mapped == nullptr) {
    ::munmap(start + before, size_bytes);
  }
  return mapped;
}

}  // namespace gpushm::fake
