// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace gpushm::inspect {

// Records of the kernel's audit, as auditd, ausearch, journald and the kernel's log print them: of
// SELinux ("avc: denied { … } for …"), AppArmor (apparmor="DENIED" …), seccomp and others
// (type=SYSCALL msg=audit(…): …). Lines have no repeated blanks.

/// Where records begin in a line. A header ("type=AVC msg=audit(1.2:3):") is a part of its record.
[[nodiscard]] std::vector<std::size_t> audit_records_in(std::string_view line);

/// Whether the line has a record.
[[nodiscard]] inline bool has_audit_record(std::string_view line) {
  return !audit_records_in(line).empty();
}

/// Terminals and chats wrap records. If `next` is the rest of `record`, what was between them: a
/// blank, or nothing if a word was cut. Returns nullopt if `next` is not a part of the record: it
/// has no field of audit records that is still missing.
[[nodiscard]] std::optional<std::string_view> audit_record_goes_on(std::string_view record,
                                                                   std::string_view next);

}  // namespace gpushm::inspect
