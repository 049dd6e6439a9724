// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/ipc_library.hpp"

#include <link.h>

#include <filesystem>
#include <string_view>

#include "base/process/child_process.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

int take_name(dl_phdr_info* info, std::size_t /*size*/, void* result) {
  const std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (name.substr(name.rfind('/') + 1) != ipc_library_name) {
    return 0;
  }
  *static_cast<std::string*>(result) = name;
  return 1;
}

}  // namespace

std::string loaded_ipc_library() {
  std::string found;
  ::dl_iterate_phdr(take_name, &found);
  return found;
}

std::string find_ipc_library(const std::string& operation, const std::string& requested) {
  std::error_code failed;
  if (!requested.empty()) {
    const fs::path path = fs::absolute(requested).lexically_normal();
    if (!fs::is_regular_file(path, failed)) {
      throw error(errc::invalid_argument,
                  operation,
                  requested,
                  "there is no such file",
                  "pass the path of libgpushm-ipc.so to --ipc-library");
    }
    return path.string();
  }
  if (std::string loaded = loaded_ipc_library(); !loaded.empty()) {
    return loaded;
  }
  const fs::path program = fs::path(base::executable_path()).parent_path();
  for (const fs::path& place : {fs::path("/run/gpushm/ipc"),
                                program / "../lib/gpushm/ipc",
                                program / "../lib",
                                program / "../lib64",
                                program / "../lib/x86_64-linux-gnu",
                                program / "../lib/aarch64-linux-gnu",
                                program}) {
    const fs::path path = (place / ipc_library_name).lexically_normal();
    if (fs::is_regular_file(path, failed)) {
      return path.string();
    }
  }
  return {};
}

}  // namespace gpushm::cli
