// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::cli {

inline constexpr const char* ipc_library_name = "libgpushm-ipc.so";

/// The path of libgpushm-ipc.so: `requested` if it is not empty; else the library that this process
/// has loaded, in a container the mounted one, or the one installed with this program. Empty if
/// there is none. Throws `error` (invalid_argument) if `requested` does not exist.
[[nodiscard]] std::string find_ipc_library(const std::string& operation,
                                           const std::string& requested);

/// The path of the libgpushm-ipc.so that the loader has loaded into this process; empty: none.
[[nodiscard]] std::string loaded_ipc_library();

}  // namespace gpushm::cli
