// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "cdi/document/document.hpp"

namespace gpushm::cdi {

/// The document with the names of its fields, in the order of the specification, without what is
/// empty. The one description of what a written document has.
[[nodiscard]] nlohmann::ordered_json to_value(const document& content);

}  // namespace gpushm::cdi
