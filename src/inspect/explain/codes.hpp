// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

/// The class of the Python package for an error code: "no_such_segment" → "NoSuchSegmentError".
[[nodiscard]] std::string python_name(std::string_view code);

/// One rule for each section of docs/errors.md, in its order: recognises the code as C++, C, Python
/// and JSON write it. Throws `error` with `errc::invalid_argument` if a section does not have the
/// form "### NUMBER. CODE", a paragraph, "- Causes: …" and "- Remedy: …".
[[nodiscard]] std::vector<explain_rule> rules_of_codes(std::string_view manual);

}  // namespace gpushm::inspect
