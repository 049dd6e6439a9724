// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/files/guarded_fd.hpp"

namespace gpushm::base {

/// Identifies a process so that no other is mistaken for it: neither one with the same number in
/// another PID namespace, nor a later one with the same number, nor a forked child, nor one of
/// another machine or boot.
struct process_identity {
  std::string boot_id;                   ///< of the kernel; empty if /proc is not mounted
  std::uint64_t pid_namespace = 0;       ///< inode of /proc/self/ns/pid; 0 if it cannot be read
  std::int32_t pid = 0;                  ///< as that namespace numbers it
  std::uint64_t start_time = 0;          ///< field 22 of /proc/self/stat, clock ticks; 0: unknown
  std::array<std::uint8_t, 16> epoch{};  ///< random; new in every process and after every fork
  friend bool operator==(const process_identity&, const process_identity&) = default;
};

/// The identity of the calling process. Thread-safe; the first call in a process reads files.
/// Throws system_error (no random numbers).
[[nodiscard]] process_identity this_process();

struct process_lookup {
  /// Nullopt if that is unknown: a process of another boot or PID namespace.
  std::optional<bool> has_ended;
  /// The pidfd of a process that has not ended; empty if the kernel has none (Linux before 5.3,
  /// gVisor).
  guarded_fd pidfd;
};
/// Finds a process, and no later one with its number. Thread-safe.
[[nodiscard]] process_lookup look_up(const process_identity& process);

/// True if it is certain that the process has exited: it belonged to this boot and PID namespace,
/// and its number is unused or belongs to another process by now. False if that is unknown, as for
/// other namespaces. Keeps a descriptor for each of the last processes queried. Thread-safe.
[[nodiscard]] bool has_ended(const process_identity& process);

}  // namespace gpushm::base
