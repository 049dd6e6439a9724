// SPDX-License-Identifier: Apache-2.0
#include "broker/chunk_kinds.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "gpushm/error.hpp"

namespace gpushm::broker_detail {

namespace {

// Documentation/admin-guide/devices.txt of Linux: character major 195 is NVIDIA's; the driver's
// nv-frontend gives minor 255 to nvidiactl. Exported allocations are open files of that node.
constexpr unsigned nvidia_major = 195;
constexpr unsigned nvidiactl_minor = 255;
constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

bool is_sealed_memfd(int fd, const struct stat& info, std::uint64_t size_bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals != -1 && (seals & required_seals) == required_seals && S_ISREG(info.st_mode) &&
         static_cast<std::uint64_t>(info.st_size) == size_bytes &&
         (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

bool is_nvidiactl(const struct stat& info) {
  return S_ISCHR(info.st_mode) && major(info.st_rdev) == nvidia_major &&
         minor(info.st_rdev) == nvidiactl_minor;
}

bool is_unnamed_tmpfs_file(int fd, const struct stat& info) {
  struct statfs where {};
  return S_ISREG(info.st_mode) && info.st_nlink == 0 && ::fstatfs(fd, &where) == 0 &&
         where.f_type == TMPFS_MAGIC && ::fcntl(fd, F_GET_SEALS) == F_SEAL_SEAL;
}

}  // namespace

void check_chunk(int fd, gpushm::backend kind, std::uint64_t chunk_bytes, bool accept_fake) {
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  switch (kind) {
    case gpushm::backend::host:
      if (known && is_sealed_memfd(fd, info, chunk_bytes)) {
        return;
      }
      throw error(
          errc::wrong_descriptor_kind,
          {},
          {},
          "a host chunk is not a memfd of the announced size, sealed with SHRINK, GROW and SEAL",
          "seal the memfd before it is attached");
    case gpushm::backend::cuda_vmm:
    case gpushm::backend::cuda_pool:
      if (known && (is_nvidiactl(info) || (accept_fake && is_unnamed_tmpfs_file(fd, info)))) {
        return;
      }
      throw error(errc::wrong_descriptor_kind,
                  {},
                  {},
                  "a GPU chunk is not a descriptor of /dev/nvidiactl",
                  "attach what cuMemExportToShareableHandle gave");
    case gpushm::backend::cuda_ipc:
      throw error(errc::wrong_descriptor_count,
                  {},
                  {},
                  "legacy handles come without descriptors",
                  "attach nothing");
  }
}

}  // namespace gpushm::broker_detail
