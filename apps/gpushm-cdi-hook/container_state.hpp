// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::cdi_hook {

/// Reads the state that a container engine writes to standard input, up to end of file or 1 MiB.
/// Throws `error`.
[[nodiscard]] std::string read_state();

/// The root of the container whose OCI state is `state`, from its bundle's config.json. Throws
/// `error` (invalid_argument).
[[nodiscard]] std::string root_of_container(std::string_view state);

}  // namespace gpushm::cdi_hook
