// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// The namespaces that an isolated process has for itself, as they are called in /proc/self/ns.
inline constexpr std::array<std::string_view, 5> isolated_namespaces{
    "pid", "ipc", "net", "uts", "mnt"};

/// Continues in a child with its own PID (it is number 1), IPC, network, UTS and mount namespaces,
/// its own /proc, `uid` as user and group, no capability and no way to get one; without a `uid` it
/// stays the user that it is, with what that user may do. Without privileges this takes a user
/// namespace. The calling process stays behind: it calls `started` with the child's PID, waits for
/// the child and ends as the child does; a child whose parent dies is killed.
///
/// To be called before the process has any other thread. Throws `error` (permission_denied, saying
/// what is missing), in the caller or in the child.
void isolate(std::optional<uid_t> uid,
             const std::string& hostname,
             const std::function<void(pid_t)>& started);

/// Whether this process is privileged enough to give `uid` to an isolated child without a user
/// namespace.
[[nodiscard]] bool can_isolate_directly(uid_t uid);

/// "pid:[4026531836]": equal texts are the same namespace. Empty when it cannot be read.
[[nodiscard]] std::string namespace_text(std::string_view name);

/// Effective capabilities of this process as /proc/self/status has them: hexadecimal, all zeros for
/// none.
[[nodiscard]] std::string effective_capabilities();

}  // namespace gpushm::cli
