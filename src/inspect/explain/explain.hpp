// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
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
[[nodiscard]] situation situation_of(const facts& facts, std::vector<check> checks);
/// Whether a text that was printed elsewhere can nevertheless be from this machine: it has GPUs,
/// and this process is in a container.
[[nodiscard]] bool may_have_failed_here(const facts& facts);
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

/// Explains the errors in `text`: a name, a number, a message, or a whole log; any bytes and any
/// size. The most specific first, each rule once; empty if nothing is recognised. `here` is the
/// machine that the text is from; empty if it is unknown: the text alone decides. Pure.
[[nodiscard]] std::vector<explanation> explain(std::string_view text, const situation& here = {});

/// The same for a log in parts; keeps only the surroundings of errors in memory, a few MiB at most.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class log_explainer {
 public:
  log_explainer();
  log_explainer(const log_explainer&) = delete;
  log_explainer& operator=(const log_explainer&) = delete;
  ~log_explainer();

  void add(std::string_view part);
  /// The last call.
  [[nodiscard]] std::vector<explanation> finish(const situation& here);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace gpushm::inspect
