// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "apps/support/end_signal.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::cli {

/// A file that appears at its path only when it is complete: a temporary file in the same directory
/// is renamed. "-" is standard output, which is written directly (`reserve_standard_output`, before
/// text is printed). An existing file that is not a regular file (a pipe, /dev/null) is written
/// directly. A signal that terminates the process removes an incomplete file
/// (`app::end_on_signals`).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class output_file {
 public:
  /// Throws `error` (permission_denied, system_error).
  explicit output_file(std::string path);
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  /// Removes the temporary file unless `commit` was called.
  ~output_file();

  /// Throws `error` (out_of_memory if the disk is full, system_error).
  void write(std::span<const std::byte> bytes);
  /// Renames the file to its path. Throws as `write`.
  void commit();

 private:
  std::string path_;
  std::string temporary_;                      ///< empty: written directly, or committed
  std::optional<app::unfinished_file> guard_;  ///< for `temporary_`
  base::unique_fd fd_;
};

}  // namespace gpushm::cli
