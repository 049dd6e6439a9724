// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// `note`: information, neither wrong nor requiring action for sharing; also a consequence of
/// another check's problem.
enum class verdict : std::uint8_t { ok, warning, problem, not_applicable, note };
/// "ok", "warning", "problem", "not applicable", "note".
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

/// The result of one check.
struct check {
  std::string id;       ///< stable: "uvm-major"
  std::string section;  ///< "driver", "devices", "isolation", "sharing"
  verdict result = verdict::not_applicable;
  std::string seen;    ///< the finding, in one line
  std::string why;     ///< why it matters; may be empty
  std::string remedy;  ///< a command or a line of YAML; empty if no action is needed
  /// The id of the problem of which this check is a consequence; the check is then a note without a
  /// remedy, so that users act on the cause only. Empty: not a consequence.
  std::string follows;
};

/// A result without id and section, which `examine` adds.
[[nodiscard]] inline check finding(verdict value,
                                   std::string seen,
                                   std::string why = {},
                                   std::string remedy = {}) {
  check result;
  result.result = value;
  result.seen = std::move(seen);
  result.why = std::move(why);
  result.remedy = std::move(remedy);
  return result;
}

/// The ids of all checks, in the order in which they are shown.
[[nodiscard]] std::span<const std::string_view> check_ids() noexcept;

/// Applies every rule to `facts`, in the order of `check_ids`; returns each id exactly once.
[[nodiscard]] std::vector<check> examine(const facts& facts);

/// Why no program can use CUDA here, in one line; empty if CUDA works or there is no driver.
[[nodiscard]] std::string driver_problem(const facts& facts);

}  // namespace gpushm::inspect
