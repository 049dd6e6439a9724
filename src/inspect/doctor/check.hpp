// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// `note`: how things are, which is neither wrong nor needs anything to be done for sharing; also
/// what only follows from another check's problem.
enum class verdict : std::uint8_t { ok, warning, problem, not_applicable, note };
/// "ok", "warning", "problem", "not applicable", "note".
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

/// One thing that was looked at, for people and for scripts.
struct check {
  std::string id;       ///< stable: "uvm-major"
  std::string section;  ///< "driver", "devices", "isolation", "sharing"
  verdict result = verdict::not_applicable;
  std::string seen;    ///< what was found, in a line
  std::string why;     ///< why it matters, or nothing to say
  std::string remedy;  ///< a command or a line of YAML; empty when there is nothing to do
  /// The id of the problem that this one is a consequence of; such a check is a note without a
  /// remedy, so that the cause alone is acted on. Empty: of none.
  std::string follows;
};

/// The ids of all checks, in the order in which they are shown.
[[nodiscard]] std::span<const std::string_view> check_ids() noexcept;

/// Every rule applied to `all`, in the order of `check_ids`; each id once, always there.
[[nodiscard]] std::vector<check> examine(const facts& all);

/// Why no program can use CUDA here, in a line; empty when one can, or when there is no driver.
[[nodiscard]] std::string driver_problem(const facts& all);

}  // namespace gpushm::inspect
