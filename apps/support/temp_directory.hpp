// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::app {

/// Creates a directory with mode 0700 and a unique name that begins with `prefix`, in $TMPDIR, else
/// in /tmp, else in /dev/shm, and returns its path. Throws `error` (permission_denied,
/// system_error).
[[nodiscard]] std::string make_temp_directory(std::string_view prefix);

/// A temporary directory, removed with its contents by the destructor. Thread-safety: distinct
/// objects: safe; shared objects: const members safe.
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
