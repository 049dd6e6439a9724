// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm_fuzz {

/// Device and inode of a file.
using file_id = std::pair<dev_t, ino_t>;
[[nodiscard]] file_id id_of(int fd);

/// A memfd of this size with these seals.
[[nodiscard]] gpushm::base::unique_fd memfd(off_t bytes, int seals);

/// One descriptor of each kind that a client may send.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class descriptor_pool {
 public:
  /// The same for all inputs.
  [[nodiscard]] static const descriptor_pool& instance();

  /// Mostly good ones: of host memory, or with `of_gpu` what the hub accepts as GPU memory.
  [[nodiscard]] gpushm::base::unique_fd copy(std::uint8_t which, bool of_gpu) const;
  [[nodiscard]] std::set<file_id> ids_of_tmpfs_files() const;

 private:
  descriptor_pool();
  void add(gpushm::base::unique_fd fd);

  std::vector<gpushm::base::unique_fd> kinds_;
  gpushm::base::unique_fd unnamed_;  ///< a tmpfs file; the hub accepts it as a fake driver's chunk
};

/// How many descriptors this process has.
[[nodiscard]] std::size_t open_descriptors();

}  // namespace gpushm_fuzz
