// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace gpushm::base {

/// Starts a thread of the library with a name (at most 15 bytes, displayed by ps and debuggers) and
/// all signals blocked, so that the program's handlers run on the program's threads. Throws
/// `errc::system_error` if the system allows no more threads.
[[nodiscard]] std::jthread start_thread(const char* name, std::function<void()> run);

}  // namespace gpushm::base
