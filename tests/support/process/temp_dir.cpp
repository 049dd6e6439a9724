// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/temp_dir.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "base/files/syscall.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

temp_dir::temp_dir(mode_t mode) {
  const char* parent = std::getenv("TMPDIR");
  path_ =
      std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/gpushm-test-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr || ::chmod(path_.c_str(), mode) != 0) {
    throw harness_error("cannot create " + path_ + ": " + gpushm::base::errno_text(errno));
  }
}

temp_dir::~temp_dir() {
  std::error_code failed;
  std::filesystem::remove_all(path_, failed);
  if (failed) {
    std::cerr << "cannot remove " << path_ << ": " << failed.message() << '\n';
  }
}

}  // namespace gpushm_testing
