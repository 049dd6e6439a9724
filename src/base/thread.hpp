// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace gpushm::base {

/// Starts a thread of the library: it has a name (at most 15 bytes, as ps and debuggers show it)
/// and blocks every signal, so that the program's handlers run on the program's threads. Throws
/// `errc::system_error` when the system allows no further thread.
[[nodiscard]] std::jthread start_thread(const char* name, std::function<void()> run);

}  // namespace gpushm::base
