// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::cdi_hook {

/// Runs a hook of a generated document on the host, as the OCI hook createContainer. Reads the
/// container's state from standard input. `words`: the name of the hook and its options. Returns
/// the exit status. Throws `error`, or `cli::usage_error` without a name.
int run_hook(const std::vector<std::string>& words);

}  // namespace gpushm::cdi_hook
