// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/yaml/problem.hpp"

namespace gpushm::cdi {

/// Larger files are rejected unread. A limit of this implementation: the largest known documents
/// have some 100 KiB.
inline constexpr std::size_t max_document_bytes = std::size_t{4} << 20U;

struct parsed {
  document content;                     ///< the fields read; do not use when there are problems
  std::vector<yaml::problem> problems;  ///< all problems, in document order
  /// Input that engines accept but is probably a mistake.
  std::vector<yaml::problem> warnings;
};

/// Reads a JSON or YAML document and checks it against the specification and its reference loader
/// (docs/cdi.md lists the differences). `file` is the file name in problems. Throws only
/// `std::bad_alloc`; no I/O.
[[nodiscard]] parsed parse(std::string_view text, const std::string& file);

/// The same for the file `path`. An unreadable or non-regular file is a problem. Blocks while
/// reading at most `max_document_bytes`.
[[nodiscard]] parsed load(const std::string& path);

}  // namespace gpushm::cdi
