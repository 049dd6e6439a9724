// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspect/explain/explain.hpp"
#include "inspect/explain/match.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

/// "EPERM" and the other values of errno that texts are searched for.
[[nodiscard]] bool is_errno_name(std::string_view name) noexcept;

/// The errno values in the line of `where`, else in the next line: names, texts of strerror(3), and
/// numbers after "errno".
[[nodiscard]] std::vector<std::string> errnos_at(const explain_text& text,
                                                 explain_text::place where);

/// The function that failed with the error at `where`: the last one before it in its line, else the
/// first after it, else the nearest line's. A function is a name of the CUDA driver or runtime,
/// NVML or NCCL, or matches a name in `rule`. Empty if none is near. Without "_v2".
[[nodiscard]] std::string failed_call(const explain_text& text,
                                      explain_text::place where,
                                      const explain_rule& rule);

/// The causes that the text around `where` and the machine leave, most likely first. Of a record of
/// the kernel's audit, only the record itself.
[[nodiscard]] std::vector<cause> causes_of(const explain_rule& rule,
                                           const explain_text& text,
                                           explain_text::place where,
                                           const situation& here);

}  // namespace gpushm::inspect
