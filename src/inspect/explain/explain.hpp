// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/doctor/check.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// The known facts about the machine where an error occurred; may be empty.
struct situation {
  std::set<std::string, std::less<>> facts;  ///< names of `fact_names()` that hold
  std::vector<check> checks;
};
[[nodiscard]] situation situation_of(const facts& all, std::vector<check> checks);
/// Every name that `situation::facts` can have: "in-container", "own-pid-namespace", ...
[[nodiscard]] std::span<const std::string_view> fact_names();

struct cause {
  std::string id;
  double share = 0;  ///< the shares of an explanation's causes add up to 1
  std::string text;
  std::string confirm;  ///< how to confirm it: a command, or values to compare
  std::string fix;      ///< a command or a line of YAML
  /// The facts and texts that raised its share: "uvm-major (problem): ...".
  std::vector<std::string> evidence;
};

struct explanation {
  std::string rule;  ///< stable: "invalid-context"
  std::string title;
  std::string about;  ///< the meaning, and common misconceptions; may be empty
  std::string found;  ///< the part of the text that was recognised; no control characters
  std::string line;   ///< the line that contains it, shortened; no control characters
  std::size_t line_number = 1;
  std::vector<cause> causes;  ///< most likely first
};

/// Maximum size of a text; the rest is ignored.
inline constexpr std::size_t explain_limit_bytes = 1024UL * 1024;

/// Explains the errors in `text`: a name, a number, a message, or a whole log; any bytes. The most
/// specific first, each rule once; empty if nothing is recognised. Pure.
[[nodiscard]] std::vector<explanation> explain(std::string_view text, const situation& here = {});

}  // namespace gpushm::inspect
