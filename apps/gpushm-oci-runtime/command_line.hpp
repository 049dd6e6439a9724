// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::oci_runtime {

/// The parts of a container engine's command line that this program uses.
struct command_line {
  std::string subcommand;              ///< "create"; empty: none
  std::string container;               ///< its id, if the subcommand creates one
  std::string bundle;                  ///< if the subcommand creates a container; "." by default
  std::string config = "config.json";  ///< in the bundle, or absolute; crun has an option for it
  std::string log;                     ///< the file for the runtime's errors; empty: none
  bool log_json = false;
  bool dry_run = false;                ///< this program's own option
  std::vector<std::string> forwarded;  ///< for the real runtime: everything but our own options

  /// Whether the subcommand creates a container from the bundle's config.json.
  [[nodiscard]] bool creates_container() const;
  /// The path of that file.
  [[nodiscard]] std::string config_file() const;
};

/// Parses the arguments after the program's name as runc and crun do: global options, then the
/// subcommand with its options. An unknown option before the subcommand is assumed to have a value
/// if the next argument is not a subcommand. Throws `error` (invalid_argument: --bundle without a
/// value, --dry-run with a subcommand that creates no container).
[[nodiscard]] command_line read_command_line(const std::vector<std::string>& arguments);

}  // namespace gpushm::oci_runtime
