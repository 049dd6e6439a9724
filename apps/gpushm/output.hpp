// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// To standard output, as it is: what comes from others must have been through `base::printable`.
/// Failures are kept and reported by `flush_output`.
void print(std::string_view text);
/// One line to standard output, through `base::printable`.
void print_line(std::string_view line);
/// "gpushm: LINE" to standard error, through `base::printable`.
void note(std::string_view line);
/// Throws `errc::system_error` when something printed could not be written.
void flush_output();

/// "1.5 GiB (1610612736 bytes)"; "512 bytes" for what has no larger unit.
[[nodiscard]] std::string exact_size_text(std::uint64_t bytes);

}  // namespace gpushm::cli
