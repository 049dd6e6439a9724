// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace gpushm_testing {

/// A new directory under `$TMPDIR` (default /tmp) that is removed with its contents on destruction.
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class temp_dir {
 public:
  /// `mode` is set regardless of the umask. Throws `harness_error`.
  explicit temp_dir(mode_t mode = 0700);
  temp_dir(const temp_dir&) = delete;
  temp_dir& operator=(const temp_dir&) = delete;
  ~temp_dir();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// `path()` + "/" + `name`.
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace gpushm_testing
