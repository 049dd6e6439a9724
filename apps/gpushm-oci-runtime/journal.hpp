// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "apps/gpushm-oci-runtime/command_line.hpp"
#include "apps/gpushm-oci-runtime/settings.hpp"

namespace gpushm::oci_runtime {

enum class severity { info, warning, error };

/// An edit, for the log.
struct logged_edit {
  std::string_view device;
  std::string_view text;
  std::string_view reason;
};

/// Writes one line per message to the log that the settings name, and errors also to the file where
/// the engine looks for the runtime's errors. A failure to write the log is reported once on
/// standard error. Thread-safety: distinct objects: safe, also in several processes with one file;
/// shared objects: unsafe.
class journal {
 public:
  journal(const command_line& called, const settings& chosen);

  void edit(const logged_edit& edit);
  void remark(severity severity, std::string_view text);
  /// Writes to standard error, the log, and the runtime's log in the runtime's format.
  void fail(std::string_view text);

 private:
  void append(const std::string& line);

  const command_line& called_;
  const settings& chosen_;
  bool reported_ = false;
};

/// Appends one line in the format of runc's log to the file that `--log` names, if any. Never
/// throws.
void report_to_engine(const command_line& called, std::string_view text) noexcept;

}  // namespace gpushm::oci_runtime
