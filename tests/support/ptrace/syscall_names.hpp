// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gpushm_testing {

/// "sendmsg"; "system call 999" for one that is not in the build machine's headers.
[[nodiscard]] std::string syscall_name(std::uint64_t number);

}  // namespace gpushm_testing
