// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpushm::agent {

/// Replaces this process by a new one of the same program, with the same arguments and environment:
/// all descriptors but the standard ones are closed, libraries are unloaded, and supervisors see no
/// end. Returns only if that fails, with the reason in the log.
void start_again(char* const* argv);

}  // namespace gpushm::agent
