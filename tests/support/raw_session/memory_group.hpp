// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpushm_testing {

/// A memory cgroup with a limit, of version 1 or 2, removed on destruction: end its processes
/// before. Move-only.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class memory_group {
 public:
  /// Returns nullopt, with the reason in `why_not`, if this process may not create one.
  [[nodiscard]] static std::optional<memory_group> make(std::uint64_t limit_bytes,
                                                        std::string& why_not);
  memory_group(memory_group&& other) noexcept;
  memory_group& operator=(memory_group&&) = delete;
  memory_group(const memory_group&) = delete;
  memory_group& operator=(const memory_group&) = delete;
  ~memory_group();

  /// Moves a process into the group. False when that is refused.
  [[nodiscard]] bool add(pid_t pid) const;
  /// Number of processes of the group that the OOM killer has killed.
  [[nodiscard]] std::uint64_t kills() const;
  /// Peak of the charged bytes; 0 if the kernel does not report it.
  [[nodiscard]] std::uint64_t peak_bytes() const;

 private:
  memory_group(std::string path, bool unified) noexcept;
  std::string path_;
  bool unified_;
};

}  // namespace gpushm_testing
