// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

/// The directories of gpushm-brokerd.
namespace gpushm::domains {

inline constexpr mode_t public_mode = 0755;
inline constexpr mode_t private_mode = 0700;

/// Creates a run directory for processes of another uid. As root. Throws `error`, also if the
/// directory belongs to a third user.
void prepare_run_directory(const std::string& path, uid_t uid, gid_t gid);

/// Creates a directory, or changes an existing one of this user or root, to exactly this mode
/// regardless of the umask. Does not follow a symbolic link unless `may_be_link`: an administrator
/// then chose its target, which must still belong to this user or root. Throws `error`.
void create_directory(const std::string& path, mode_t mode, bool may_be_link = false);

/// Throws `error` (invalid_argument) if a directory cannot have the name of the domain.
void check_name(const std::string& domain);

/// In a directory; none if it cannot be read.
[[nodiscard]] std::vector<std::string> names_in(const std::string& directory);

}  // namespace gpushm::domains
