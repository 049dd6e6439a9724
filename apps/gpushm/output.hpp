// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// The FILE that stands for standard output, as an option's value.
inline constexpr std::string_view standard_output = "-";

/// From now on `print` writes to standard error, because standard output has a segment's bytes.
void reserve_standard_output();
/// Writes to standard output unchanged: text from other processes must be escaped with
/// `base::printable` first. Failures are reported by `flush_output`.
void print(std::string_view text);
/// Writes one line to standard output, escaped with `base::printable`.
void print_line(std::string_view line);
/// Writes "gpushm: LINE" to standard error, escaped with `base::printable`.
void note(std::string_view line);
/// Throws `error` with `errc::system_error` if printed text could not be written.
void flush_output();

/// "1.5 GiB (1610612736 bytes)"; "512 bytes" below 1 KiB.
[[nodiscard]] std::string exact_size_text(std::uint64_t bytes);

}  // namespace gpushm::cli
