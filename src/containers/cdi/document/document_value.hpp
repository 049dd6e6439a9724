// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "containers/cdi/document/document.hpp"

namespace gpushm::cdi {

/// The document as a JSON value, with fields in the specification's order and without empty ones.
/// The only definition of the written form.
[[nodiscard]] nlohmann::ordered_json to_value(const document& content);

}  // namespace gpushm::cdi
