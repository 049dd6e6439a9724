// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace gpushm::base {

/// A file beside the one to be, until it has its name; it goes with the object before that. Engines
/// do not read its name, and so never half of a file. Errors name `operation`, which must stay, and
/// the path.
///
/// Distinct objects: safe. Shared objects: unsafe.
class file_beside {
 public:
  /// Mode 0600. Throws `error`, as all here.
  file_beside(const char* operation, std::string path);
  file_beside(const file_beside&) = delete;
  file_beside& operator=(const file_beside&) = delete;
  ~file_beside();

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  void write(std::string_view text);
  /// Gives it its name, instead of whatever had it.
  void commit();

 private:
  const char* operation_;
  std::string path_;
  std::string own_;
  base::unique_fd file_;
};

}  // namespace gpushm::base
