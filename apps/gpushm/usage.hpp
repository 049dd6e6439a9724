// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `parse` needs beside CLI11: other spellings of a command line, and texts of usage errors.

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace gpushm::cli {

/// The words after the program's name. `help COMMAND…` becomes `COMMAND… --help`, and `--version`
/// becomes `version`, so that both accept the options of that command.
[[nodiscard]] std::vector<std::string> command_words(int argc, const char* const* argv);

/// A usage error: its text, and the command whose help shows the right usage.
struct usage_problem {
  std::string text;
  std::string command;  ///< "gpushm", "gpushm channel pub"
};

/// Returns the first word of `words` that stands where `root`, or a command of it that has commands
/// itself, expects a command, and names none; nullopt if there is no such word. CLI11 would print
/// the help of `root` for an unknown command followed by --help.
[[nodiscard]] std::optional<usage_problem> find_unknown_command(
    const CLI::App& root, const std::vector<std::string>& words);

/// Describes `failure`, which `root` threw while it parsed.
[[nodiscard]] usage_problem describe_usage_error(const CLI::App& root,
                                                 const CLI::ParseError& failure);

}  // namespace gpushm::cli
