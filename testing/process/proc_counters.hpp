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

// What a process holds, read from /proc: for tests that count what leaked. All block only for the
// time that /proc takes, all are thread-safe, and all throw `harness_error` when the process is not
// there or may not be looked into.

/// How many descriptors of each kind are open: "socket", "pipe", "anon_inode:[eventpoll]",
/// "memfd:NAME", or the path.
using descriptor_counts = std::map<std::string, std::size_t>;
[[nodiscard]] descriptor_counts count_descriptors(pid_t pid);
[[nodiscard]] std::size_t total(const descriptor_counts& counts);
/// Those whose kind contains `part`.
[[nodiscard]] std::size_t total(const descriptor_counts& counts, std::string_view part);
/// "socket: 3, memfd:x: 1", for failure messages.
[[nodiscard]] std::string to_text(const descriptor_counts& counts);

/// Mappings of files whose name contains `part` (an unnamed tmpfs file reads "/memfd:NAME
/// (deleted)").
[[nodiscard]] std::size_t count_mappings(pid_t pid, std::string_view part);

/// Bytes really allocated in memfds and deleted shared files, whose names contain `part`, that any
/// of `pids` has open or mapped; a file that several hold counts once. Mappings without a
/// descriptor are only seen with the right to look (root).
[[nodiscard]] std::uint64_t shared_memory_bytes(const std::vector<pid_t>& pids,
                                                std::string_view part = {});

/// The state of the process or thread that has this directory in /proc ('R', 'S', 'Z', …); 0: it is
/// gone. Never throws.
[[nodiscard]] char state_in(const std::string& directory) noexcept;

/// It is there and no zombie. Never throws.
[[nodiscard]] bool process_lives(pid_t pid) noexcept;

/// Threads of the process.
[[nodiscard]] std::size_t count_threads(pid_t pid);

/// Resident anonymous memory (RssAnon): the heap, mostly.
[[nodiscard]] std::uint64_t anonymous_bytes(pid_t pid);

}  // namespace gpushm_testing
