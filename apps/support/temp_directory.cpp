// SPDX-License-Identifier: Apache-2.0
#include "support/temp_directory.hpp"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/log.hpp"
#include "base/syscall.hpp"

namespace gpushm::app {

temp_directory::temp_directory(std::string_view prefix) {
  const char* root = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  path_ = std::string(root != nullptr && *root == '/' ? root : "/tmp") + "/" + std::string(prefix) +
          "-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    base::throw_errno(errno, "make temporary directory", path_, "mkdtemp");
  }
}

temp_directory::~temp_directory() {
  std::error_code failed;
  std::filesystem::remove_all(path_, failed);
  if (failed) {
    base::log(log_level::warning, "cannot remove " + path_ + ": " + failed.message());
  }
}

}  // namespace gpushm::app
