// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"
#include "yaml/problem.hpp"

namespace gpushm::cdi {

/// Larger files are refused unread. Ours: the largest known documents have some 100 KiB.
inline constexpr std::size_t max_document_bytes = std::size_t{4} << 20U;

struct parsed {
  document content;  ///< what could be read; not to be used when there are problems
  std::vector<yaml::problem> problems;  ///< all of them, in the order of their places
  /// What engines accept and somebody should still look at.
  std::vector<yaml::problem> warnings;
};

/// Reads a document, JSON or YAML, and judges it by the rules of the specification and of its
/// reference loader (docs/cdi.md lists where they differ). Never throws but for memory; no I/O.
/// `file` is what problems name.
[[nodiscard]] parsed parse(std::string_view text, const std::string& file);

/// The same for the file `path`. What cannot be read, or is not a regular file, is a problem.
/// Blocks as long as reading at most `max_document_bytes` takes.
[[nodiscard]] parsed load(const std::string& path);

}  // namespace gpushm::cdi
