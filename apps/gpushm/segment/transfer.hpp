// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/files/unique_fd.hpp"
#include "gpushm/segment.hpp"

namespace gpushm::cli {

/// Fills the whole segment from `fd`, a file of its size. `check`, if given, is called before each
/// block and may throw. Throws `error`: system_error (the file became shorter), driver_error.
void load(segment& target,
          int fd,
          const std::string& path,
          const std::function<void()>& check = {});

/// Passes all bytes of `source` to `take`, in order and in blocks.
void for_each_block(const segment& source,
                    const std::string& activity,
                    const std::function<void(std::span<const std::byte>)>& take);

/// A regular file to load.
struct input_file {
  base::unique_fd fd;
  std::uint64_t size_bytes = 0;
};
/// Throws `error`: permission_denied, system_error, invalid_argument (not a regular file, or
/// empty).
[[nodiscard]] input_file open_input(const std::string& path);

}  // namespace gpushm::cli
