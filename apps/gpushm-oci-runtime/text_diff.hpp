// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::oci_runtime {

/// The difference of two texts in the unified format with three lines of context; empty when they
/// are equal. Pure; takes time proportional to lines times differences.
[[nodiscard]] std::string unified_diff(std::string_view before,
                                       std::string_view after,
                                       std::string_view before_name,
                                       std::string_view after_name);

}  // namespace gpushm::oci_runtime
