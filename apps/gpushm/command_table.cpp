// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/command_table.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/gpushm/json_output.hpp"

namespace gpushm::cli {

namespace {

option_entry entry_of(const CLI::Option& option) {
  option_entry entry;
  for (const std::string& name : option.get_snames()) {
    entry.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    entry.names.push_back("--" + name);
  }
  entry.is_argument = entry.names.empty();
  if (entry.is_argument) {
    entry.names.push_back(option.get_name(true));
  }
  const bool takes_value = option.get_items_expected_max() > 0;
  entry.type = takes_value ? option.get_type_name() : std::string();
  entry.description = option.get_description();
  entry.is_required = option.get_required();
  entry.is_repeated = takes_value && option.get_items_expected_max() > 1;
  for (const CLI::Option* const each : option.get_excludes()) {
    entry.excludes.push_back(each->get_name(each->get_lnames().empty()));
  }
  std::sort(entry.excludes.begin(), entry.excludes.end());
  return entry;
}

void add_commands(const CLI::App& app,
                  const std::string& prefix,
                  std::vector<command_entry>& table) {
  for (const CLI::App* const each : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (each->get_group().empty()) {
      continue;
    }
    command_entry entry;
    entry.name = prefix + each->get_name();
    entry.description = each->get_description();
    entry.has_commands = !each->get_subcommands([](const CLI::App*) { return true; }).empty();
    entry.takes_program = each->get_prefix_command();
    for (const CLI::Option* const option : each->get_options()) {
      if (!option->get_group().empty()) {
        entry.options.push_back(entry_of(*option));
      }
    }
    const std::string below = entry.name + " ";
    table.push_back(std::move(entry));
    add_commands(*each, below, table);
  }
}

}  // namespace

std::vector<command_entry> command_table(const CLI::App& root) {
  std::vector<command_entry> table;
  add_commands(root, {}, table);
  return table;
}

std::string command_table_text(const std::vector<command_entry>& table) {
  json commands = json::array();
  for (const command_entry& command : table) {
    json options = json::array();
    for (const option_entry& option : command.options) {
      options.push_back({{"names", option.names},
                         {"type", option.type},
                         {"description", option.description},
                         {"is_argument", option.is_argument}});
    }
    commands.push_back({{"name", command.name},
                        {"description", command.description},
                        {"has_commands", command.has_commands},
                        {"takes_program", command.takes_program},
                        {"options", std::move(options)}});
  }
  return json{{"commands", std::move(commands)}}.dump() + "\n";
}

}  // namespace gpushm::cli
