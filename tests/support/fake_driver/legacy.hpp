// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "base/files/unique_fd.hpp"

namespace gpushm::fake {

/// Memory of cuMemAlloc. Gets a name in the GPU's directory when its handle is first requested, and
/// a lock that shows other processes that its exporter is alive.
struct legacy_memory {
  legacy_memory() = default;
  legacy_memory(const legacy_memory&) = delete;
  legacy_memory& operator=(const legacy_memory&) = delete;
  ~legacy_memory();

  std::size_t gpu = 0;
  std::size_t size_bytes = 0;
  void* memory = nullptr;
  base::unique_fd fd;
  std::string path;  ///< empty until exported
  unsigned int slot = 0;
};

/// Removes the names of exported memory in `directory` whose exporters died without freeing it.
void sweep_dead_exports(const std::string& directory);

}  // namespace gpushm::fake
