// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/descriptor_pool.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "tests/fuzz/require.hpp"

namespace gpushm_fuzz {

using gpushm::base::unique_fd;

file_id id_of(int fd) {
  struct stat info {};
  GPUSHM_REQUIRE(::fstat(fd, &info) == 0);
  return {info.st_dev, info.st_ino};
}

unique_fd memfd(off_t bytes, int seals) {
  unique_fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  GPUSHM_REQUIRE(fd && ::ftruncate(fd.get(), bytes) == 0);
  GPUSHM_REQUIRE(seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

const descriptor_pool& descriptor_pool::instance() {
  static const descriptor_pool pool;
  return pool;
}

descriptor_pool::descriptor_pool() {
  add(memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  add(memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  add(memfd(4096, 0));
  add(memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  std::array<int, 2> ends{};
  GPUSHM_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  add(unique_fd(ends[0]));
  add(unique_fd(ends[1]));
  add(unique_fd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  unnamed_ = unique_fd(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  GPUSHM_REQUIRE(unnamed_ && ::ftruncate(unnamed_.get(), 4096) == 0);
  add(unique_fd(::fcntl(unnamed_.get(), F_DUPFD_CLOEXEC, 0)));
}

void descriptor_pool::add(unique_fd fd) {
  GPUSHM_REQUIRE(fd);
  kinds_.push_back(std::move(fd));
}

unique_fd descriptor_pool::copy(std::uint8_t which, bool of_gpu) const {
  const unique_fd& good = of_gpu ? unnamed_ : kinds_[0];
  const unique_fd& chosen = which < 200 ? good : kinds_[which % kinds_.size()];
  unique_fd fd(::fcntl(chosen.get(), F_DUPFD_CLOEXEC, 0));
  GPUSHM_REQUIRE(fd);
  return fd;
}

std::set<file_id> descriptor_pool::ids_of_tmpfs_files() const {
  std::set<file_id> ids;
  for (const unique_fd& each : kinds_) {
    struct statfs where {};
    GPUSHM_REQUIRE(::fstatfs(each.get(), &where) == 0);
    if (where.f_type == TMPFS_MAGIC) {
      ids.insert(id_of(each.get()));
    }
  }
  return ids;
}

std::size_t open_descriptors() {
  static std::array<pollfd, 512> descriptors = [] {
    std::array<pollfd, 512> result{};
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i].fd = static_cast<int>(i);
    }
    return result;
  }();
  GPUSHM_REQUIRE(::poll(descriptors.data(), descriptors.size(), 0) >= 0);
  return static_cast<std::size_t>(
      std::count_if(descriptors.begin(), descriptors.end(), [](const pollfd& entry) {
        return (entry.revents & POLLNVAL) == 0;
      }));
}

}  // namespace gpushm_fuzz
