// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::inspect {

/// Where a line of a log begins in the text that is searched.
struct line_start {
  std::size_t offset = 0;
  std::size_t number = 1;
};

/// A log without what differs between programs that print, collect and show logs.
struct clean_log {
  std::string text;  ///< lines, separated by line feeds; no other control characters
  std::vector<line_start> lines;
};

/// Removes colours and other control characters, repeated blanks, time stamps and the prefixes of
/// container runtimes and process groups; joins lines that a runtime has split; writes each record
/// of the kernel's audit as one line; decodes the escapes of JSON and of quoted texts in log lines.
/// `first_number` is the number of the first line. Pure.
[[nodiscard]] clean_log clean(std::string_view raw, std::size_t first_number = 1);

}  // namespace gpushm::inspect
