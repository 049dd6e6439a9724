// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm_tests {

/// The bytes of a shared library without code: headers, a dynamic section with this SONAME (none
/// when empty). `bits` is 64, for this machine, or 32, for a PC.
[[nodiscard]] std::string elf_stub(std::string_view soname, int bits = 64);

/// An ld.so.cache with these paths, for this machine's architecture; with the old format first on
/// request.
[[nodiscard]] std::string ld_cache_file(const std::vector<std::string>& paths, bool old_in_front);

}  // namespace gpushm_tests
