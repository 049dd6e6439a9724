// SPDX-License-Identifier: Apache-2.0
#include "apps/support/program_path.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/text/text.hpp"

namespace gpushm::app {

bool is_executable(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_regular_file(path, failed) && ::access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_executable(std::string_view directories, const std::string& name) {
  for (const std::string_view directory : base::split(directories, ":")) {
    std::string path = std::string(directory).append("/").append(name);
    if (is_executable(path)) {
      return path;
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::app
