// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

/// A new file that replaces the one at `path` when it is complete. Until then it has a temporary
/// name in the same directory, which container engines ignore; the destructor removes it unless it
/// was committed. Errors name `operation`, which must outlive this object, and `path`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class staged_file {
 public:
  /// Creates the file with mode 0600. All functions throw `error`.
  staged_file(const char* operation, std::string path);
  staged_file(const staged_file&) = delete;
  staged_file& operator=(const staged_file&) = delete;
  ~staged_file();

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  void write(std::string_view text);
  /// Renames it to `path`, replacing an existing file.
  void commit();

 private:
  const char* operation_;
  std::string path_;
  std::string own_;
  base::unique_fd file_;
};

}  // namespace gpushm::base
