// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace gpushm::app::oci {

/// A system call filter that denies the calls that container engines deny by default and that need
/// no capability.
[[nodiscard]] nlohmann::json default_seccomp();

}  // namespace gpushm::app::oci
