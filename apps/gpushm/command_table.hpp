// SPDX-License-Identifier: Apache-2.0
#pragma once

// All commands with their options, as the parser declares them: the source of the manual page, of
// the shells' completions and of the tests of the documents.

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace gpushm::cli {

struct option_entry {
  std::vector<std::string> names;  ///< "--size"; "-q", "--names"; of an argument: "NAME"
  std::string type;                ///< "SIZE", "read|rw"; empty: a flag, or an argument
  std::string description;
  bool is_argument = false;
  bool is_required = false;
  bool is_repeated = false;
  std::vector<std::string> excludes;  ///< first names of the options that it excludes
};

struct command_entry {
  std::string name;  ///< "create", "channel pub"
  std::string description;
  std::vector<option_entry> options;
  bool has_commands = false;   ///< "channel": its commands follow
  bool takes_program = false;  ///< what follows its argument belongs to another program
};

/// The commands below `root` that its help shows, in its order; hidden options are omitted.
[[nodiscard]] std::vector<command_entry> command_table(const CLI::App& root);

/// The table as one JSON document, for tests: `commands`, each `name`, `description`,
/// `has_commands`, `takes_program` and `options` (`names`, `type`, `description`, `is_argument`).
[[nodiscard]] std::string command_table_text(const std::vector<command_entry>& table);

/// The manual page gpushm(1), in the man macros of roff.
[[nodiscard]] std::string man_page(const std::vector<command_entry>& table);

}  // namespace gpushm::cli
