// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/files/syscall.hpp"

namespace gpushm::cli {

/// As `base::throw_errno`, with a next step for a file that the user named.
[[noreturn]] void throw_file_error(int number,
                                   std::string_view operation,
                                   const std::string& path,
                                   std::string_view call);

/// As `base::checked`, for calls on such a file.
template <typename Call>
auto checked_file(std::string_view operation,
                  const std::string& path,
                  std::string_view call_name,
                  Call&& call) {
  const auto result = base::retry(call);
  if (result == -1) {
    throw_file_error(errno, operation, path, call_name);
  }
  return result;
}

}  // namespace gpushm::cli
