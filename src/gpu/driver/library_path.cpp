// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/library_path.hpp"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>

namespace gpushm::driver {

std::string path_of_library(void* library) {
  link_map* loaded = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) != 0 || loaded == nullptr) {
    return {};
  }
  std::error_code failed;
  const auto real = std::filesystem::canonical(loaded->l_name, failed);
  return failed ? loaded->l_name : real.string();
}

}  // namespace gpushm::driver
