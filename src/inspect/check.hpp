// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspect/facts.hpp"

namespace gpushm::inspect {

enum class verdict : std::uint8_t { ok, warning, problem, not_applicable };
/// "ok", "warning", "problem", "not applicable".
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

/// One thing that was looked at, for people and for scripts.
struct check {
  std::string id;       ///< stable: "uvm-major"
  std::string section;  ///< "driver", "devices", "isolation", "sharing"
  verdict result = verdict::not_applicable;
  std::string seen;    ///< what was found, in a line
  std::string why;     ///< why it matters, or nothing to say
  std::string remedy;  ///< a command or a line of YAML; empty when there is nothing to do
};

/// Every rule applied to `all`, in the order in which they are shown; each id once, always there.
[[nodiscard]] std::vector<check> examine(const facts& all);

}  // namespace gpushm::inspect
