// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm/command_line.hpp"

namespace gpushm::cli {

/// The commands of the program, or below one of its commands, in the order of its help. Adding a
/// command does not declare it to the parser: declaring all of them takes longer than most of them
/// run.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class command_list {
 public:
  /// The words of the command line that follow a command's name.
  using words = std::span<const std::string>;

  /// Commands that the parser finds set `parsed`, which outlives the list and its declarations.
  explicit command_list(request& parsed) : parsed_(parsed) {}

  /// `declare` declares the command `name` below its parent.
  void add(std::string name, std::function<void(CLI::App& parent, words words)> declare);

  /// Declares the command that is the first one of `line`; if there is no such command, all of
  /// them, which help and suggestions need.
  void declare(CLI::App& parent, words line) const;

  [[nodiscard]] request& parsed() const noexcept { return parsed_; }

 private:
  struct entry {
    std::string name;
    std::function<void(CLI::App& parent, words words)> declare;
  };

  request& parsed_;
  std::vector<entry> entries_;
};

/// Adds the command `name`: `add` declares its options, which fill an `Arguments`, and `run`
/// executes the command and returns the exit status. `run` throws `error`, which becomes exit
/// status 1, or `usage_error`, which becomes 2. `Arguments` has a member `json`, or `connection`
/// with one, if the command can report errors as JSON.
template <typename Arguments>
void add_command(command_list& commands,
                 const char* name,
                 const char* description,
                 void (*add)(CLI::App&, Arguments&),
                 int (*run)(const Arguments&)) {
  commands.add(name, [=, &parsed = commands.parsed()](CLI::App& parent, auto&& /*words*/) {
    // The parser keeps references to the members that it fills.
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* app = parent.add_subcommand(name, description);
    app->footer("");
    add(*app, *arguments);
    app->callback([&parsed, arguments, run] {
      parsed.run = [arguments, run] { return run(*arguments); };
      if constexpr (requires { arguments->json; }) {
        parsed.json = arguments->json;
      } else if constexpr (requires { arguments->connection.json; }) {
        parsed.json = arguments->connection.json;
      }
    });
  });
}

/// Adds the command `name`, of which one of the commands that `add` adds is required.
void add_command_group(command_list& commands,
                       const char* name,
                       const char* description,
                       void (*add)(command_list& below));

}  // namespace gpushm::cli
