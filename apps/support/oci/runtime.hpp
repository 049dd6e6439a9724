// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/child_process.hpp"

namespace gpushm::app::oci {

/// An OCI runtime: runc, crun, or another with their command line.
struct runtime {
  std::string path;
  /// What it is started with: `path`, after what it needs to work on this machine.
  std::vector<std::string> command;
  friend bool operator==(const runtime&, const runtime&) = default;
};

/// `name` in $PATH or where the system keeps its own programs; a name with a slash is a path.
/// Nothing when there is no such program.
[[nodiscard]] std::optional<runtime> find_runtime(const std::string& name);

/// The first line of `RUNTIME --version`: "runc version 1.1.5". Throws `error` when it does not
/// tell by `until`.
[[nodiscard]] std::string version_of(const runtime& with, base::deadline until);

}  // namespace gpushm::app::oci
