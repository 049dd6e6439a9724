// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::yaml {

/// Why a document, or a device of the registry, cannot be used.
struct problem {
  std::string file;
  int line = 0;      ///< 1-based; 0: the whole file
  int column = 0;    ///< 1-based
  std::string rule;  ///< a short, stable name: "unknown-field"
  std::string text;  ///< a sentence without a full stop
  bool operator==(const problem&) const = default;
};

/// "FILE:LINE:COLUMN: TEXT [RULE]".
[[nodiscard]] std::string to_string(const problem& problem);

}  // namespace gpushm::yaml
