// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

namespace gpushm::app::oci {

/// A system call filter that refuses what container engines refuse by default and a program could
/// try without a capability.
[[nodiscard]] nlohmann::json default_seccomp();

}  // namespace gpushm::app::oci
