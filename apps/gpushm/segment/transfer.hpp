// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/unique_fd.hpp"
#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// Fills the whole segment from `fd`, a file of exactly that size; `check`, when given, is called
/// for every block and may throw. Throws `error`: system_error (the file changed meanwhile),
/// driver_error.
void load(segment& target,
          int fd,
          const std::string& path,
          const std::function<void()>& check = {});

/// Hands every byte of `source` to `take`, in order and in blocks.
void for_each_block(const segment& source,
                    const std::string& what,
                    const std::function<void(std::span<const std::byte>)>& take);

/// A regular file that is to be loaded, and its size. Throws `error`: permission_denied,
/// system_error, invalid_argument (no regular file, or an empty one).
struct input_file {
  base::unique_fd fd;
  std::uint64_t size_bytes = 0;
};
[[nodiscard]] input_file open_input(const std::string& path);

}  // namespace gpushm::cli
