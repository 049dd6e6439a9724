// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "apps/support/end_signal.hpp"
#include "base/unique_fd.hpp"

namespace gpushm::cli {

/// A file that appears under its name only when it is complete: written beside it, then renamed.
/// Something that is there already and is no regular file (a pipe, /dev/null) is written to
/// directly. A signal that ends the process removes it when it is not complete
/// (`app::end_on_signals`).
///
/// Distinct objects: safe. Shared objects: unsafe.
class output_file {
 public:
  /// Throws `error` (permission_denied, system_error).
  explicit output_file(std::string path);
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  /// Without `commit`: nothing stays.
  ~output_file();

  /// Throws `error` (out_of_memory when the disk is full, system_error).
  void write(std::span<const std::byte> bytes);
  /// Gives it its name. Errors as `write`.
  void commit();

 private:
  std::string path_;
  std::string temporary_;                      ///< empty: written directly, or committed
  std::optional<app::unfinished_file> guard_;  ///< for `temporary_`
  base::unique_fd fd_;
};

}  // namespace gpushm::cli
