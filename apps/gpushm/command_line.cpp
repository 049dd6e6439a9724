// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/command_table.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/completion.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/usage.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* about =
    "gpushm: POSIX shared memory for GPUs.\n"
    "One process creates a named segment of GPU or host memory; other processes open it by name.\n";
constexpr const char* footer =
    "Example:\n"
    "  export GPUSHM_SOCKET=/tmp/gpushm.socket\n"
    "  gpushm serve &\n"
    "  gpushm create hello --size 64MiB --fill 42 --lifetime persistent\n"
    "  gpushm open hello --checksum\n"
    "A complete demonstration: gpushm demo\n\n"
    "Exit status: 0 success, 1 the operation failed, 2 wrong usage.";

int print_usage_error(const usage_problem& problem) {
  note(problem.text);
  note(fmt::format("see: {} --help", problem.command));
  return exit_usage;
}

/// `command_words` turns `help COMMAND` into `COMMAND --help`: this one is for help and
/// suggestions.
void add_help(command_list& commands) {
  commands.add("help", [](CLI::App& parent, command_list::words /*words*/) {
    CLI::App* const help = parent.add_subcommand("help", "Show the help of a command");
    help->footer("");
    help->add_option("COMMAND", "Name of the command")->type_name("");
  });
}

/// Adds all commands in the order of the program's help.
void add_commands(command_list& commands) {
  add_serve(commands);
  add_create(commands);
  add_load(commands);
  add_weights(commands);
  add_open(commands);
  add_list(commands);
  add_stat(commands);
  add_remove(commands);
  add_release(commands);
  add_wait(commands);
  add_quotas(commands);
  add_lost_gpu(commands);
  add_export(commands);
  add_import(commands);
  add_demo(commands);
  add_run(commands);
  add_demo_role(commands);
  add_doctor(commands);
  add_explain(commands);
  add_topo(commands);
  add_channel(commands);
  add_cdi(commands);
  add_k8s(commands);
  add_matrix(commands);
  add_probe_driver(commands);
  add_measure_worker(commands);
  add_trial_worker(commands);
  add_trial_side(commands);
  add_help(commands);
  add_version(commands);
}

/// Hidden commands that print what `root` declares; empty if `words` names none of them.
std::function<int()> table_command(const CLI::App& root, const std::vector<std::string>& words) {
  const std::string_view name = words.empty() ? std::string_view() : words.front();
  if (name == "complete" && words.size() > 1 && words[1] == "--") {
    return [table = command_table(root),
            rest = std::vector<std::string>(words.begin() + 2, words.end())] {
      print(completions(table, rest));
      return exit_ok;
    };
  }
  if (words.size() == 1 && (name == "command-table" || name == "man-page")) {
    return [text = name == "man-page" ? man_page(command_table(root))
                                      : command_table_text(command_table(root))] {
      print(text);
      return exit_ok;
    };
  }
  return nullptr;
}

}  // namespace

request parse(int argc, char** argv) {
  CLI::App root(about, "gpushm");
  root.get_formatter()->column_width(34);
  root.footer(footer);
  root.set_version_flag("--version", std::string("gpushm ") + GPUSHM_VERSION);
  root.require_subcommand(1);
  request result;
  command_list commands(result);
  add_commands(commands);
  const std::vector<std::string> words = command_words(argc, argv);
  commands.declare(root, words);
  if (auto print_table = table_command(root, words)) {
    result.run = std::move(print_table);
    return result;
  }
  if (const auto unknown = find_unknown_command(root, words)) {
    result.status = print_usage_error(*unknown);
    return result;
  }
  try {
    root.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // from the last one
  } catch (const CLI::Success& shown) {                                  // help or version
    result.status = root.exit(shown);
    result.run = nullptr;
  } catch (const CLI::ParseError& failure) {
    result.run = nullptr;
    if (words.empty()) {
      print(root.help());
      result.status = exit_usage;
    } else {
      result.status = print_usage_error(describe_usage_error(root, failure));
    }
  }
  return result;
}

}  // namespace gpushm::cli
