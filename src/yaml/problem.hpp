// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::yaml {

/// Why a document, or a device of the registry, cannot be used.
struct problem {
  std::string file;
  int line = 0;      ///< from 1; 0: the file as a whole
  int column = 0;    ///< from 1
  std::string rule;  ///< a short name that stays: "unknown-field"
  std::string text;  ///< a sentence without its full stop
  bool operator==(const problem&) const = default;
};

/// "FILE:LINE:COLUMN: TEXT [RULE]".
[[nodiscard]] std::string to_string(const problem& found);

}  // namespace gpushm::yaml
