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
#include "apps/gpushmd/start_again.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr int exit_usage = 2;

/// Planning reads megabytes of files and documents once; this returns that memory to the kernel
/// afterwards. Measured with everything on: 3 MB of private memory instead of 11.
void limit_memory() {
  constexpr int threshold_bytes = 64 << 10U;
  // NOLINTBEGIN(concurrency-mt-unsafe): only one thread exists yet
  ::mallopt(M_TRIM_THRESHOLD, threshold_bytes);
  ::mallopt(M_MMAP_THRESHOLD, threshold_bytes);
  ::mallopt(M_ARENA_MAX, 2);
  // NOLINTEND(concurrency-mt-unsafe)
}

void print_error(const std::string& text) {
  std::fprintf(stderr, "gpushmd: %s\n", text.c_str());
}

const char* variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no code sets variables
}

void add_settings(CLI::App& app, flag_values& flags) {
  const auto settings = all_settings();
  for (std::size_t i = 0; i < settings.size(); ++i) {
    std::string help(settings[i].help);
    if (!settings[i].variable.empty()) {
      help.append(" ($").append(settings[i].variable).append(")");
    }
    app.add_option_function<std::string>(
           std::string(settings[i].flag),
           [&flags, i](const std::string& text) { flags[i] = text; },
           help)
        ->type_name(std::string(settings[i].value_name))
        ->take_last();
  }
}

int check_settings(const flag_values& flags) {
  const settings_result result = gather_settings(flags, variable);
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
  CLI::App app("The node agent of gpushm: domains, device plugin, DRA driver, metrics.", "gpushmd");
  app.set_version_flag("--version", GPUSHM_VERSION);
  flag_values flags(all_settings().size());
  add_settings(app, flags);
  CLI::App* const check =
      app.add_subcommand("check-config", "Report errors in the settings and exit");
  check->fallthrough();
  app.footer("Precedence: flag, environment variable, file. The file's keys: docs/kubernetes.md.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& why) {
    const int status = app.exit(why);
    return status == 0 ? EXIT_SUCCESS : exit_usage;
  }
  if (check->parsed()) {
    return check_settings(flags);
  }
  const auto read = [&] { return gather_usable_settings(flags, variable); };
  const settings chosen = read();
  limit_memory();
  start_log(chosen.log_level, chosen.log_as);
  int status = EXIT_SUCCESS;
  if (run_agent(chosen, read) == agent_end::restart) {
    start_again(argv);
    status = EXIT_FAILURE;
  }
  if (anything_abandoned()) {
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
    gpushm::agent::print_error(why.what());
    return EXIT_FAILURE;
  }
}
