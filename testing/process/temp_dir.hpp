// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace gpushm_testing {

/// A fresh directory under `$TMPDIR` (default /tmp) that goes, with everything in it, with the
/// object. Distinct objects: safe. Shared objects: const members safe.
class temp_dir {
 public:
  /// `mode` is set whatever the umask says. Throws `harness_error`.
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
