// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::app {

/// A fresh directory under $TMPDIR, else /tmp or where that cannot be written /dev/shm, mode 0700,
/// removed with all it holds at the end. Distinct objects: safe. Shared objects: const members
/// safe.
class temp_directory {
 public:
  /// `prefix` begins its name. Throws `error` (permission_denied, system_error).
  explicit temp_directory(std::string_view prefix);
  temp_directory(const temp_directory&) = delete;
  temp_directory& operator=(const temp_directory&) = delete;
  ~temp_directory();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace gpushm::app
