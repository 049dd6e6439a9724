// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptrace/syscall_names.hpp"

#include <map>

namespace gpushm_testing {

std::string syscall_name(std::uint64_t number) {
  static const std::map<std::uint64_t, const char*> names{
#include "syscall_names.inc"
  };
  const auto found = names.find(number);
  return found != names.end() ? found->second : "system call " + std::to_string(number);
}

}  // namespace gpushm_testing
