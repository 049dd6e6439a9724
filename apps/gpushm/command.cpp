// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/command.hpp"

#include <algorithm>

namespace gpushm::cli {

void command_list::add(std::string name,
                       std::function<void(CLI::App& parent, words words)> declare) {
  entries_.push_back({std::move(name), std::move(declare)});
}

void command_list::declare(CLI::App& parent, words line) const {
  const auto named = std::find_if(entries_.begin(), entries_.end(), [&](const entry& each) {
    return !line.empty() && each.name == line.front();
  });
  if (named != entries_.end()) {
    named->declare(parent, line.subspan(1));
    return;
  }
  for (const entry& each : entries_) {
    each.declare(parent, {});
  }
}

void add_command_group(command_list& commands,
                       const char* name,
                       const char* description,
                       void (*add)(command_list& below)) {
  commands.add(name,
               [=, &parsed = commands.parsed()](CLI::App& parent, const command_list::words words) {
                 CLI::App* app = parent.add_subcommand(name, description);
                 app->footer("");
                 app->require_subcommand(1);
                 command_list below(parsed);
                 add(below);
                 below.declare(*app, words);
               });
}

}  // namespace gpushm::cli
