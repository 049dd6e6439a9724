// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm_testing {

// Resources of a process, read from /proc: for tests that count leaks. All functions block only
// while reading /proc, are thread-safe, and throw `harness_error` when the process does not exist
// or may not be inspected.

/// How many descriptors of each kind are open: "socket", "pipe", "anon_inode:[eventpoll]",
/// "memfd:NAME", or the path.
using descriptor_counts = std::map<std::string, std::size_t>;
[[nodiscard]] descriptor_counts count_descriptors(pid_t pid);
[[nodiscard]] std::size_t total(const descriptor_counts& counts);
/// Number of descriptors whose kind contains `part`.
[[nodiscard]] std::size_t total(const descriptor_counts& counts, std::string_view part);
/// "socket: 3, memfd:x: 1", for failure messages.
[[nodiscard]] std::string to_text(const descriptor_counts& counts);

/// Mappings of files whose name contains `part` (the name of an unnamed tmpfs file is "/memfd:NAME
/// (deleted)").
[[nodiscard]] std::size_t count_mappings(pid_t pid, std::string_view part);

/// Bytes allocated in memfds and deleted shared files whose names contain `part` and that any of
/// `pids` has open or mapped; a file that several processes have open is counted once. Mappings
/// without a descriptor are visible only with the permission to inspect them (root).
[[nodiscard]] std::uint64_t shared_memory_bytes(const std::vector<pid_t>& pids,
                                                std::string_view part = {});

/// The state of the process or thread with this directory in /proc ('R', 'S', 'Z', …); 0: it does
/// not exist. Never throws.
[[nodiscard]] char state_in(const std::string& directory) noexcept;

/// True if the process exists and is not a zombie. Never throws.
[[nodiscard]] bool process_is_alive(pid_t pid) noexcept;

/// Its children, and theirs, and so on, those of one process from the oldest. Never throws
/// `harness_error`: a process that ends meanwhile has none.
[[nodiscard]] std::vector<pid_t> descendants_of(pid_t pid);
/// The first 15 bytes of its program's file name; empty if the process does not exist.
[[nodiscard]] std::string program_of(pid_t pid);

/// Threads of the process.
[[nodiscard]] std::size_t count_threads(pid_t pid);

/// Resident anonymous memory (RssAnon): mostly the heap.
[[nodiscard]] std::uint64_t anonymous_bytes(pid_t pid);

}  // namespace gpushm_testing
