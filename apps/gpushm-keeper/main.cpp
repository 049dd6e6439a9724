// SPDX-License-Identifier: Apache-2.0
// Keeps the descriptors of a program while the program is replaced.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "apps/support/log_line.hpp"
#include "gpushm/client.hpp"
#include "succession/keeper/keeper.hpp"

namespace {

constexpr int usage_error = 2;

void add_seconds(CLI::App& app,
                 const char* name,
                 std::chrono::milliseconds& into,
                 const char* help,
                 std::int64_t shortest = 1) {
  constexpr std::int64_t longest = 1'000'000'000;
  app.add_option_function<std::int64_t>(
         name, [&into](std::int64_t value) { into = std::chrono::seconds(value); }, help)
      ->type_name("SECONDS")
      ->check(CLI::Range(shortest, longest))
      ->default_str(std::to_string(into.count() / 1'000));
}

void add_options(CLI::App& app, gpushm::keeper::keeper_options& into) {
  app.add_option("--socket",
                 into.socket_path,
                 "notification socket; its directory must be accessible only to this user, and is "
                 "created [$RUNTIME_DIRECTORY/notify]")
      ->type_name("PATH");
  app.add_option("--takeover",
                 into.takeover_path,
                 "socket by which a keeper that is started later takes over, with a newer PROGRAM; "
                 "if its program fails, this one continues. The directory must be accessible only "
                 "to this user, and is created")
      ->type_name("PATH");
  add_seconds(app,
              "--takeover-timeout",
              into.takeover_timeout,
              "time for a takeover, from its start until PROGRAM is ready");
  app.add_option("--takeover-pause",
                 into.takeover_pause_factor,
                 "after a takeover that has failed, refuse others for FACTOR times as long as "
                 "PROGRAM was away; doubled with each that fails, up to 5 minutes; 0: never")
      ->type_name("FACTOR")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_flag("--stay",
               into.stays_after_takeover,
               "once another keeper has taken over, wait for SIGTERM, as a container that would be "
               "started again must");
  app.add_option("--max-descriptors",
                 into.max_descriptors,
                 "most descriptors to keep, up to the open file limit less 32, which is the "
                 "default; PROGRAM "
                 "finds the number in $FDSTORE")
      ->type_name("N")
      ->check(CLI::Range(1, 1'048'576));
  add_seconds(app,
              "--stop-timeout",
              into.stop_timeout,
              "time for PROGRAM to exit after SIGTERM, before SIGKILL");
  add_seconds(app,
              "--watchdog",
              into.watchdog_timeout,
              "SIGKILL for a PROGRAM that reports that it works (WATCHDOG=1, sd_notify(3)) and has "
              "not done so for this time; 0: never",
              0);
}

int run(int argc, char** argv) {
  gpushm::keeper::keeper_options options;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): this program has one thread
  if (const char* const directory = std::getenv("RUNTIME_DIRECTORY")) {
    options.socket_path = std::string(directory) + "/notify";
  }
  CLI::App app(
      "gpushm-keeper [OPTIONS] [--] PROGRAM [ARGUMENT...]\n"
      "\n"
      "Starts PROGRAM, keeps the descriptors that it stores (the protocol of systemd's descriptor\n"
      "store, sd_pid_notify_with_fds(3)), and starts it again with them whenever it has exited.\n"
      "SIGHUP replaces PROGRAM: SIGTERM, and a new start. SIGTERM and SIGINT end both.\n"
      "\n"
      "Exit status: that of PROGRAM, or 128 and the number of the signal that ended it; 127 if it\n"
      "cannot be executed; 2 for a wrong command line; 1 for other errors.",
      "gpushm-keeper");
  app.set_version_flag("--version", "gpushm-keeper " GPUSHM_VERSION);
  app.prefix_command();
  app.option_defaults()->take_last();
  add_options(app, options);
  try {
    app.parse(argc, argv);
    options.argv = app.remaining();
    if (!options.argv.empty() && options.argv.front() == "--") {
      options.argv.erase(options.argv.begin());
    } else if (!options.argv.empty() && options.argv.front().starts_with('-')) {
      throw CLI::ExtrasError({options.argv.front()});
    }
    if (options.argv.empty()) {
      throw CLI::ValidationError("PROGRAM", "there is no program to start");
    }
    if (options.socket_path.empty()) {
      throw CLI::ValidationError("--socket", "required, unless RUNTIME_DIRECTORY is set");
    }
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : usage_error;
  }
  const auto log = std::make_shared<gpushm::app::program_log>("gpushm-keeper");
  gpushm::set_log_sink(
      [log](gpushm::log_level level, std::string_view text) { log->write(level, text); });
  log->write(gpushm::log_level::info, "version " GPUSHM_VERSION);
  return gpushm::keeper::keeper(std::move(options)).run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "gpushm-keeper: %s\n", failure.what());
    return 1;
  }
}
