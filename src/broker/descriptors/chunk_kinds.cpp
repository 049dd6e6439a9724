// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/chunk_kinds.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "gpushm/error.hpp"
#include "sync/timeline_page_file.hpp"

namespace gpushm::broker_detail {

namespace {

// Documentation/admin-guide/devices.txt of Linux: character major 195 is NVIDIA's; the driver's
// nv-frontend gives minor 255 to nvidiactl. Exported allocations are open files of that node.
constexpr unsigned nvidia_major = 195;
constexpr unsigned nvidiactl_minor = 255;
// Of all machines; creators use the size of theirs.
constexpr std::uint64_t smallest_page_bytes = 4'096;
/// The largest size of a registered file. The driver's file of events has 80 KiB.
constexpr off_t max_registered_bytes = 1'048'576;
constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Nothing here may call a file's server: fstat of a FUSE file blocks until its server answers.

bool is_usable(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags != -1 && (flags & O_PATH) == 0;
}

/// A file in shared memory (memfd, tmpfs) or hugetlbfs: only these have seals.
bool is_memory_file(int fd) {
  return ::fcntl(fd, F_GET_SEALS) != -1;
}

bool is_sealed_memfd(int fd, std::uint64_t size_bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info {};
  return seals != -1 && (seals & required_seals) == required_seals && ::fstat(fd, &info) == 0 &&
         S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) == size_bytes &&
         (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

bool is_of_this_user(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_uid == ::geteuid();
}

bool is_nvidiactl(int fd) {
  struct statx info {};
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 &&
         S_ISCHR(info.stx_mode) && info.stx_rdev_major == nvidia_major &&
         info.stx_rdev_minor == nvidiactl_minor;
}

/// A file with seals never waits for another process. `info` is then what fstat says.
bool is_tmpfs_file(int fd, struct stat& info) {
  struct statfs where {};
  return is_memory_file(fd) && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         ::fstatfs(fd, &where) == 0 && where.f_type == TMPFS_MAGIC;
}

bool is_unnamed_tmpfs_file(int fd) {
  struct stat info {};
  return is_tmpfs_file(fd, info) && ::fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL && info.st_nlink == 0;
}

bool is_small_tmpfs_file(int fd) {
  struct stat info {};
  return is_tmpfs_file(fd, info) && info.st_size <= max_registered_bytes;
}

}  // namespace

bool is_pidfd(int fd) noexcept {
  // waitid(2): EBADF unless `fd` is a pidfd; for a pidfd, ECHILD or success.
  siginfo_t info{};
  constexpr auto by_pidfd = static_cast<idtype_t>(3);  // P_PIDFD, Linux 5.4
  return ::waitid(by_pidfd, static_cast<id_t>(fd), &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
         errno == ECHILD;
}

bool is_pipe(int fd) noexcept {
  return ::fcntl(fd, F_GETPIPE_SZ) != -1;
}

bool is_of_member_kind(int fd) noexcept {
  return is_usable(fd) && (is_memory_file(fd) || is_nvidiactl(fd) || is_pidfd(fd) || is_pipe(fd));
}

void throw_wrong_chunk_kind(gpushm::backend kind) {
  switch (kind) {
    case gpushm::backend::host:
      throw error(
          errc::wrong_descriptor_kind,
          {},
          {},
          "a host chunk is not a memfd of the announced size, sealed with SHRINK, GROW and SEAL",
          "seal the memfd before it is attached");
    case gpushm::backend::cuda_ipc:
    case gpushm::backend::timeline:
      throw error(errc::wrong_descriptor_count,
                  {},
                  {},
                  "legacy handles and timelines have no descriptors",
                  "attach nothing");
    case gpushm::backend::signals:
      throw error(errc::wrong_descriptor_kind,
                  {},
                  {},
                  "this is not a descriptor of that page, which this broker's user has made",
                  "hand back what `Reserved` or `Opened` brought");
    case gpushm::backend::descriptor:
      throw error(errc::wrong_descriptor_kind,
                  {},
                  {},
                  "this is neither a descriptor of /dev/nvidiactl nor a file of a tmpfs of at most "
                  "1 MiB",
                  "register memory that the driver has exported, or its file of events");
    case gpushm::backend::cuda_vmm:
    case gpushm::backend::cuda_pool:
      break;
  }
  throw error(errc::wrong_descriptor_kind,
              {},
              {},
              "a GPU chunk is not a descriptor of /dev/nvidiactl",
              "attach the descriptor that cuMemExportToShareableHandle returned");
}

void check_chunk(int fd, gpushm::backend kind, std::uint64_t chunk_bytes, bool accept_fake) {
  bool is_valid = false;
  switch (kind) {
    case gpushm::backend::host:
      is_valid = is_sealed_memfd(fd, chunk_bytes);
      break;
    case gpushm::backend::signals:
      is_valid = sync::is_timeline_page(fd, chunk_bytes) && is_of_this_user(fd);
      break;
    case gpushm::backend::cuda_vmm:
    case gpushm::backend::cuda_pool:
      is_valid = is_nvidiactl(fd) || (accept_fake && is_unnamed_tmpfs_file(fd));
      break;
    case gpushm::backend::descriptor:
      is_valid =
          is_nvidiactl(fd) || is_small_tmpfs_file(fd) || (accept_fake && is_unnamed_tmpfs_file(fd));
      break;
    case gpushm::backend::cuda_ipc:
    case gpushm::backend::timeline:
      break;
  }
  if (!is_valid || !is_usable(fd)) {
    throw_wrong_chunk_kind(kind);
  }
}

void check_whole_pages(gpushm::backend kind,
                       std::span<const std::uint64_t> chunk_bytes,
                       bool has_last) {
  if (kind != gpushm::backend::host || chunk_bytes.empty()) {
    return;
  }
  const auto followed = has_last ? chunk_bytes.first(chunk_bytes.size() - 1) : chunk_bytes;
  const auto ends_within_page = [](std::uint64_t bytes) {
    return bytes % smallest_page_bytes != 0;
  };
  if (std::any_of(followed.begin(), followed.end(), ends_within_page)) {
    throw error(errc::size_mismatch,
                {},
                {},
                "a host chunk that another one follows is not a multiple of the page size, so "
                "that chunks cannot be mapped back to back",
                "attach whole pages; only the last chunk can end within one");
  }
}

}  // namespace gpushm::broker_detail
