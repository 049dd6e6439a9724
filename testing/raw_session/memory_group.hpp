// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpushm_testing {

/// A memory cgroup with a limit, of version 1 or 2, removed with the object: end its processes
/// first. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class memory_group {
 public:
  /// Nothing, with the reason in `why_not`, where this process may not make one.
  [[nodiscard]] static std::optional<memory_group> make(std::uint64_t limit_bytes,
                                                        std::string& why_not);
  memory_group(memory_group&& other) noexcept;
  memory_group& operator=(memory_group&&) = delete;
  memory_group(const memory_group&) = delete;
  memory_group& operator=(const memory_group&) = delete;
  ~memory_group();

  /// Moves a process in. False when that is refused.
  [[nodiscard]] bool add(pid_t pid) const;
  /// How many processes of the group the kernel has killed for memory.
  [[nodiscard]] std::uint64_t kills() const;
  /// Most bytes that were charged at a time; 0 where the kernel does not say.
  [[nodiscard]] std::uint64_t peak_bytes() const;

 private:
  memory_group(std::string path, bool unified) noexcept;
  std::string path_;
  bool unified_;
};

}  // namespace gpushm_testing
