// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/descriptor_limit.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "base/files/descriptor_numbers.hpp"

namespace gpushm::broker_detail {

namespace {

std::uint64_t open_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  std::uint64_t count = 0;
  if (folder) {
    while (::readdir(folder.get()) != nullptr) {  // NOLINT(concurrency-mt-unsafe): own DIR
      ++count;
    }
  }
  return count;
}

}  // namespace

std::uint64_t descriptors_for_clients(std::uint32_t reserved, bool raise) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 0;
  }
  if (raise && limit.rlim_cur < limit.rlim_max) {
    rlimit wanted = limit;
    wanted.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &wanted) == 0) {
      limit = wanted;
    }
  }
  base::reserve_descriptor_numbers();
  const std::uint64_t taken = open_descriptors() + reserved;
  // At least 1: 0 would mean "no limit".
  return std::max<std::uint64_t>(limit.rlim_cur > taken ? limit.rlim_cur - taken : 0, 1);
}

}  // namespace gpushm::broker_detail
