// SPDX-License-Identifier: Apache-2.0
#pragma once

// Options of several commands that inspect machines.

#include <chrono>
#include <string>

namespace CLI {
class App;
}

namespace gpushm::cli {

/// Time limit for querying the driver. Without persistence mode, waking the GPUs of a large machine
/// takes seconds each, and concurrent queries are served one after the other.
inline constexpr std::chrono::milliseconds default_driver_timeout{30'000};

/// A recorded machine.
void add_from(CLI::App& app, std::string& recording);
void add_driver_timeout(CLI::App& app, std::chrono::milliseconds& timeout);
/// The broker's socket, for commands that also work without a broker.
void add_socket(CLI::App& app, std::string& socket);
void add_ipc_library(CLI::App& app, std::string& path);

}  // namespace gpushm::cli
