// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/process/child_process.hpp"

namespace gpushm::app::oci {

/// An OCI runtime: runc, crun, or one with the same command line.
struct runtime {
  std::string path;
  /// The command that starts it: `path`, after a wrapper if it needs one on this machine.
  std::vector<std::string> command;
  friend bool operator==(const runtime&, const runtime&) = default;
};

/// Searches $PATH and the system's program directories; a name with a slash is a path. Returns
/// nullopt if the program does not exist.
[[nodiscard]] std::optional<runtime> find_runtime(const std::string& name);

/// The first line of `RUNTIME --version`: "runc version 1.1.5". Throws `error` if there is none by
/// `until`.
[[nodiscard]] std::string version_of(const runtime& runtime, base::deadline until);

}  // namespace gpushm::app::oci
