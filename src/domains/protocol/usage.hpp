// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gpushm::domains {

/// What one level of a domain's budget uses of one resource.
struct usage {
  std::string level;  ///< "process", "domain", "principal" or "uid"
  std::string name;   ///< "pod …", "container …", "uid 1000"
  /// "host_bytes", "gpu_bytes", "memory_bytes", "descriptors", …; and of a domain "freeing_bytes",
  /// the part of host_bytes and gpu_bytes that belongs to removed segments and is not free yet.
  std::string resource;
  std::string gpu;  ///< of gpu_bytes
  std::uint64_t used = 0;
  std::uint64_t limit = 0;  ///< 0: none
};

}  // namespace gpushm::domains
