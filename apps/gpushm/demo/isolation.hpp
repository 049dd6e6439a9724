// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// The private namespaces of an isolated process, by their names in /proc/self/ns.
inline constexpr std::array<std::string_view, 5> isolated_namespaces{
    "pid", "ipc", "net", "uts", "mnt"};

/// Returns in a child with private PID (its PID is 1), IPC, network, UTS and mount namespaces, a
/// private /proc, `uid` as user and group, no capabilities and no way to gain any; without a `uid`
/// it keeps its user and privileges. Without privileges this requires a user namespace. The calling
/// process does not return: it calls `started` with the child's PID, waits for the child and exits
/// with the child's status or signal. The child is killed if its parent dies.
///
/// Precondition: the process has one thread. Throws `error` (permission_denied, naming what is
/// missing), in the caller or in the child.
void isolate(std::optional<uid_t> uid,
             const std::string& hostname,
             const std::function<void(pid_t)>& started);

/// True if this process has the privileges to give `uid` to an isolated child without a user
/// namespace.
[[nodiscard]] bool can_isolate_directly(uid_t uid);

/// "pid:[4026531836]": equal texts identify the same namespace. Empty if it cannot be read.
[[nodiscard]] std::string namespace_text(std::string_view name);

/// The effective capabilities of this process in the format of /proc/self/status: hexadecimal, all
/// zeros for none.
[[nodiscard]] std::string effective_capabilities();

}  // namespace gpushm::cli
