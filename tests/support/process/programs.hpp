// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace gpushm_testing {

/// The absolute path of one of the project's programs ("gpushm", "death_victim"). Searched for in
/// the directories of `$GPUSHM_TEST_PATH`, beside the running program, in its `../bin`, and in the
/// build tree; never in `$PATH`, so that an installed copy is not tested by mistake. Throws
/// `harness_error`.
[[nodiscard]] std::string own_program(const std::string& name);

/// As `own_program`, for a shared library that tests load: beside the running program, in its
/// `../lib/fake`, and in the build tree.
[[nodiscard]] std::string own_library(const std::string& name);

/// As `own_program`, but nullopt when there is none.
[[nodiscard]] std::optional<std::string> find_own_program(const std::string& name);

/// A program of the system in `$PATH`; nullopt when there is none.
[[nodiscard]] std::optional<std::string> find_in_path(const std::string& name);

/// The directory that must exist for the program at `path` to run: its build tree, else the parent
/// of its directory (an unpacked tree with bin/ and lib/).
[[nodiscard]] std::string tree_of_program(const std::string& path);

}  // namespace gpushm_testing
