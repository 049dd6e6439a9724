// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "apps/gpushmd/agent.hpp"
#include "apps/gpushmd/inventory_child.hpp"
#include "apps/gpushmd/logging.hpp"
#include "apps/gpushmd/settings.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr int exit_usage = 2;

/// Planning reads files and documents of megabytes once; what it took goes back to the kernel then.
/// Measured with everything on: 3 MB of private memory instead of 11.
void keep_memory_small() {
  constexpr int kept_bytes = 64 << 10U;
  // NOLINTBEGIN(concurrency-mt-unsafe): there is one thread yet
  ::mallopt(M_TRIM_THRESHOLD, kept_bytes);
  ::mallopt(M_MMAP_THRESHOLD, kept_bytes);
  ::mallopt(M_ARENA_MAX, 2);
  // NOLINTEND(concurrency-mt-unsafe)
}

void note(const std::string& text) {
  std::fprintf(stderr, "gpushmd: %s\n", text.c_str());
}

const char* variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets variables
}

void add_settings(CLI::App& app, spoken_settings& spoken) {
  const auto all = all_settings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string help(all[i].help);
    if (!all[i].variable.empty()) {
      help.append(" ($").append(all[i].variable).append(")");
    }
    app.add_option_function<std::string>(
           std::string(all[i].flag),
           [&spoken, i](const std::string& text) { spoken[i] = text; },
           help)
        ->type_name(std::string(all[i].value_name))
        ->take_last();
  }
}

int check_config(const spoken_settings& spoken) {
  const settings_result result = gather_settings(spoken, variable);
  for (const settings_problem& each : result.problems) {
    std::printf("%s: %s%s\n",
                each.place.c_str(),
                each.text.c_str(),
                each.next_step.empty() ? "" : (" (" + each.next_step + ")").c_str());
  }
  for (const std::string& warning : result.content.offer.plugin.warnings) {
    std::printf("warning: %s\n", warning.c_str());
  }
  if (result.problems.empty()) {
    std::printf("configuration OK\n");
  }
  return result.problems.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == inventory_argument) {
    return print_inventory(argv[2]);
  }
  CLI::App app("The node agent of gpushm: broker, device plugin, DRA driver, metrics.", "gpushmd");
  app.set_version_flag("--version", GPUSHM_VERSION);
  spoken_settings spoken(all_settings().size());
  add_settings(app, spoken);
  CLI::App* const check =
      app.add_subcommand("check-config", "Say what is wrong with the settings, and end");
  check->fallthrough();
  app.footer(
      "A flag counts more than the variable named beside it, that more than the file. The file's "
      "keys: docs/kubernetes.md.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& why) {
    const int status = app.exit(why);
    return status == 0 ? EXIT_SUCCESS : exit_usage;
  }
  if (check->parsed()) {
    return check_config(spoken);
  }
  const auto read = [&] { return gather_usable_settings(spoken, variable); };
  const settings chosen = read();
  keep_memory_small();
  start_log(chosen.log_level, chosen.log_as);
  const int status = run_agent(chosen, read);
  if (anything_left_behind()) {
    ::_exit(status);
  }
  return status;
}

}  // namespace

}  // namespace gpushm::agent

int main(int argc, char** argv) {
  try {
    return gpushm::agent::run(argc, argv);
  } catch (const std::exception& why) {
    gpushm::agent::note(why.what());
    return EXIT_FAILURE;
  }
}
