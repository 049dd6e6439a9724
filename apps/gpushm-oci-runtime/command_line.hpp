// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::oci_runtime {

/// What a container engine calls a runtime with, as far as we look at it.
struct command_line {
  std::string subcommand;              ///< "create"; empty: none
  std::string container;               ///< its id, of a subcommand that makes one
  std::string bundle;                  ///< of one that makes a container; "." when not given
  std::string config = "config.json";  ///< in the bundle, or absolute; crun can be told another
  std::string log;                     ///< the file that the runtime tells its errors; empty: none
  bool log_json = false;
  bool dry_run = false;                ///< ours
  std::vector<std::string> forwarded;  ///< for the real runtime: everything but what is ours

  /// Whether a container is made of the bundle's config.json.
  [[nodiscard]] bool makes_container() const;
  /// The path of that file.
  [[nodiscard]] std::string config_file() const;
};

/// Reads the arguments after the program's name, as runc and crun do: options of their own first,
/// then the subcommand with its options. An unknown option before the subcommand is taken to have a
/// value when a word follows that is no subcommand. Throws `error` (invalid_argument: --bundle
/// without a value, --dry-run without anything to make).
[[nodiscard]] command_line read_command_line(const std::vector<std::string>& arguments);

}  // namespace gpushm::oci_runtime
