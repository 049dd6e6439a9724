// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/doctor/check.hpp"

namespace gpushm::inspect {

// The contents of rules.json. Its format is that of these structs, with the same names; empty
// members can be omitted.

/// A condition that makes a cause more or less likely: a check's verdict, a fact, or a text.
struct explain_condition {
  std::string check;
  verdict result = verdict::problem;  ///< "verdict"
  std::string fact;
  std::string text;  ///< is also in the text
  double factor = 1;
  bool excludes = false;  ///< instead of a factor: the cause is then impossible
};

struct explain_cause {
  std::string id;
  double prior = 0;  ///< above 0, at most 1; only the ratios within a rule matter
  std::string text;
  std::string confirm;
  std::string fix;
  std::vector<explain_condition> when;
  /// Functions that can fail for this reason, without "_v2"; "*" is any text. If empty: all.
  std::vector<std::string> calls;
  std::vector<std::string> not_calls;  ///< functions that cannot fail for this reason
  std::vector<std::string> errnos;  ///< "errno": the values with which it is possible; empty: all
};

/// With these verdicts and facts, this cause must come first. For the tests.
struct explain_order {
  std::string text;  ///< empty: the first text of `matches`
  std::map<std::string, verdict> checks;
  std::vector<std::string> facts;
  std::string first;
};

struct explain_rule {
  std::string id;
  std::string title;
  std::string about;
  /// Identifiers: letters, digits, "_". Any case; never part of a longer word.
  std::vector<std::string> names;
  std::vector<int> numbers;          ///< alone, or after "error", "code", ...
  std::vector<std::string> phrases;  ///< see `pattern`
  std::vector<std::string> alone;    ///< only if the text contains only this
  bool vague = false;                ///< its phrases are unspecific: others are shown first
  bool manual = false;               ///< a section of docs/errors.md; not in rules.json
  std::vector<explain_cause> causes;
  std::vector<std::string> matches;    ///< must return this rule first. For the tests.
  std::vector<std::string> unrelated;  ///< must not return this rule. For the tests.
  std::vector<explain_order> orders;
};

/// Throws `error` with `errc::invalid_argument` if `json` is malformed: an unknown key, check, fact
/// or verdict, a duplicate id, a rule without patterns or causes.
[[nodiscard]] std::vector<explain_rule> parse_explain_rules(std::string_view json);

/// The rules of this build: those of rules.json, then one for each error code of gpushm, made from
/// docs/errors.md. Parsed on the first call. Thread-safe.
[[nodiscard]] const std::vector<explain_rule>& explain_rules();

/// As evidence; empty if there is no such fact.
[[nodiscard]] std::string_view words_of_fact(std::string_view name) noexcept;

/// The ids of doctor's checks, which rules may name.
[[nodiscard]] bool is_check_id(std::string_view id) noexcept;

}  // namespace gpushm::inspect
