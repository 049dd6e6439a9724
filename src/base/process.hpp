// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gpushm::base {

/// Which process this is, so that no other is ever taken for it: not one with the same number in
/// another PID namespace, not a later one with the same number, not a forked child, not one of
/// another machine or boot.
struct process_identity {
  std::string boot_id;              ///< of the kernel; empty when /proc is not mounted
  std::uint64_t pid_namespace = 0;  ///< inode of /proc/self/ns/pid; 0 when it cannot be read
  std::int32_t pid = 0;             ///< as that namespace numbers it
  std::uint64_t start_time = 0;     ///< field 22 of /proc/self/stat, clock ticks; 0: not known
  std::array<std::uint8_t, 16>
      epoch{};  ///< random, made anew in every process and after every fork
  friend bool operator==(const process_identity&, const process_identity&) = default;
};

/// The identity of the calling process. Thread-safe; reads files on the first call of a process.
/// Throws system_error (no random numbers).
[[nodiscard]] process_identity this_process();

/// True when it is certain that the process has ended: it was of this boot and PID namespace, and
/// its number is nobody's or another's by now. False also when nothing can be known, as of other
/// namespaces. Keeps a
/// descriptor for each of the last processes asked for. Thread-safe.
[[nodiscard]] bool has_ended(const process_identity& process);

}  // namespace gpushm::base
