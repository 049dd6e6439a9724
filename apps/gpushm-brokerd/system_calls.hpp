// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace gpushm::app {

/// A system call that gpushm-brokerd needs, and why.
struct system_call {
  std::string_view name;
  std::string_view reason;
};

/// All of them, by name; made from traces of the test suite (docs/adr/0031). Some exist on one
/// architecture only.
[[nodiscard]] std::span<const system_call> needed_system_calls();

/// What happens at another one.
enum class forbidden_call : unsigned char {
  refuse,  ///< it fails with EPERM, and the kernel's audit log has a line (clone3: ENOSYS, no line)
  kill,    ///< it ends the process
  allow,   ///< no filter
};

/// Limits this process to the needed system calls: sockets are Unix sockets only, and no memory is
/// made executable. Needs no_new_privs. Call before threads exist. Throws `error`: system_error if
/// the kernel has no filters.
void limit_system_calls(forbidden_call call);

}  // namespace gpushm::app
