// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/file_error.hpp"

#include <fmt/core.h>

namespace gpushm::cli {

void throw_file_error(int number,
                      std::string_view operation,
                      const std::string& path,
                      std::string_view call) {
  std::string_view next_step;
  switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
      next_step = "check the permissions of the file and its directories";
      break;
    case ENOSPC:
    case EDQUOT:
      next_step = "free space there, or choose another place";
      break;
    default:
      base::throw_errno(number, operation, path, call);
  }
  throw error(base::errc_of_errno(number),
              operation,
              path,
              fmt::format("{}: {}", call, base::errno_text(number)),
              next_step);
}

}  // namespace gpushm::cli
