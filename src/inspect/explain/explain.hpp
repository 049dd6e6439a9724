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

/// What is known of the machine that an error comes from; nothing at all is fine.
struct situation {
  std::set<std::string, std::less<>> facts;  ///< names of `fact_names()` that hold
  std::vector<check> checks;
};
[[nodiscard]] situation situation_of(const facts& all, std::vector<check> checks);
/// Every name that `situation::facts` can have: "in-container", "own-pid-namespace", ...
[[nodiscard]] std::span<const std::string_view> fact_names();

struct cause {
  std::string id;
  double share = 0;  ///< of this explanation's causes, all together 1
  std::string text;
  std::string confirm;  ///< how to find out: a command, or what to compare
  std::string fix;      ///< a command or a line of YAML
  /// What of the situation or the text moved it, in words: "uvm-major is a problem: ...".
  std::vector<std::string> evidence;
};

struct explanation {
  std::string rule;  ///< stable: "invalid-context"
  std::string title;
  std::string about;  ///< what it means, and what is wrongly said about it; may be empty
  std::string found;  ///< the part of the text that was recognised; no control characters
  std::string line;   ///< where it stands, shortened; no control characters
  std::size_t line_number = 1;
  std::vector<cause> causes;  ///< most likely first
};

/// At most this much of a text is read.
inline constexpr std::size_t explain_limit_bytes = 1024UL * 1024;

/// What is known about the errors in `text`: a name, a number, a message, or a whole log; any
/// bytes. The most telling first, each rule once; nothing when nothing is recognised. Pure.
[[nodiscard]] std::vector<explanation> explain(std::string_view text, const situation& here = {});

}  // namespace gpushm::inspect
