// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::app {

/// Makes a fresh directory under $TMPDIR, else /tmp or where that cannot be written /dev/shm, mode
/// 0700, whose name begins with `prefix`, and returns its path. Throws `error` (permission_denied,
/// system_error).
[[nodiscard]] std::string make_temp_directory(std::string_view prefix);

/// Such a directory, removed with all it holds at the end. Distinct objects: safe. Shared objects:
/// const members safe.
class temp_directory {
 public:
  /// Throws as `make_temp_directory` does.
  explicit temp_directory(std::string_view prefix) : path_(make_temp_directory(prefix)) {}
  temp_directory(const temp_directory&) = delete;
  temp_directory& operator=(const temp_directory&) = delete;
  ~temp_directory();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace gpushm::app
