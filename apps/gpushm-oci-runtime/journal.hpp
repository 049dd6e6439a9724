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

/// Writes to the log that the settings name, a line each, and errors also where the engine looks
/// for those of the runtime. A log that cannot be written is told on standard error, once.
///
/// Distinct objects: safe, also of several processes with one file. Shared objects: unsafe.
class journal {
 public:
  journal(const command_line& called, const settings& chosen);

  void edit(const logged_edit& what);
  void remark(severity how, std::string_view text);
  /// To standard error, the log, and the runtime's log in its own format.
  void fail(std::string_view text);

 private:
  void append(const std::string& line);

  const command_line& called_;
  const settings& chosen_;
  bool told_ = false;
};

/// Appends one line in the format of runc's log to the file that `--log` names; nothing without
/// one. Never throws.
void tell_engine(const command_line& called, std::string_view text) noexcept;

}  // namespace gpushm::oci_runtime
