// SPDX-License-Identifier: Apache-2.0
// Keeps the descriptors of a program while the program is replaced.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/support/log_line.hpp"
#include "base/text.hpp"
#include "gpushm/client.hpp"
#include "keeper/keeper.hpp"

namespace {

constexpr int usage_error = 2;
constexpr std::string_view usage =
    "Usage: gpushm-keeper [OPTIONS] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "Starts PROGRAM, keeps the descriptors that it stores (the protocol of systemd's descriptor\n"
    "store, sd_pid_notify_with_fds(3)), and starts it again with them whenever it has exited.\n"
    "SIGHUP replaces PROGRAM: SIGTERM, and a new start. SIGTERM and SIGINT end both.\n"
    "\n"
    "  --socket PATH           notification socket; its directory must be accessible only to\n"
    "                          this user, and is created [default: $RUNTIME_DIRECTORY/notify]\n"
    "  --takeover PATH         socket by which a keeper that is started later takes over, with a\n"
    "                          newer PROGRAM; if its program fails, this one continues. The\n"
    "                          directory must be accessible only to this user, and is created\n"
    "  --takeover-timeout SECONDS\n"
    "                          time for a takeover, from its start until PROGRAM is ready\n"
    "                          [default: 30]\n"
    "  --stay                  once another keeper has taken over, wait for SIGTERM, as a\n"
    "                          container that would be started again must\n"
    "  --max-descriptors N     most descriptors to keep [default: the open file limit less 32]\n"
    "  --stop-timeout SECONDS  time for PROGRAM to exit after SIGTERM, before SIGKILL [default: "
    "10]\n"
    "  --version               print the version\n"
    "  -h, --help              print this text\n"
    "\n"
    "Exit status: that of PROGRAM, or 128 and the number of the signal that ended it; 127 if it\n"
    "cannot be executed; 2 for a wrong command line; 1 for other errors.\n";

int fail(std::string_view cause) {
  std::fprintf(stderr,
               "gpushm-keeper: %.*s (gpushm-keeper --help lists the options)\n",
               static_cast<int>(cause.size()),
               cause.data());
  return usage_error;
}

std::optional<std::size_t> number_in(std::string_view text) {
  constexpr std::size_t largest = 1'000'000'000;
  const auto value = gpushm::base::number<std::size_t>(text);
  return value && *value != 0 && *value <= largest ? value : std::nullopt;
}

int run(int argc, char** argv) {
  gpushm::keeper::keeper_options options;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): this program has one thread
  if (const char* const directory = std::getenv("RUNTIME_DIRECTORY")) {
    options.socket_path = std::string(directory) + "/notify";
  }
  int at = 1;
  for (; at < argc; ++at) {
    const std::string_view word(argv[at]);
    if (word == "--") {
      ++at;
      break;
    }
    if (!word.starts_with('-')) {
      break;
    }
    if (word == "-h" || word == "--help") {
      std::fwrite(usage.data(), 1, usage.size(), stdout);
      return std::fflush(stdout) == 0 ? 0 : 1;
    }
    if (word == "--version") {
      return std::puts("gpushm-keeper " GPUSHM_VERSION) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
    }
    if (word == "--stay") {
      options.stays_after_takeover = true;
      continue;
    }
    std::string* text = nullptr;
    std::chrono::milliseconds* time = nullptr;
    if (word == "--socket") {
      text = &options.socket_path;
    } else if (word == "--takeover") {
      text = &options.takeover_path;
    } else if (word == "--takeover-timeout") {
      time = &options.takeover_timeout;
    } else if (word == "--stop-timeout") {
      time = &options.stop_timeout;
    } else if (word != "--max-descriptors") {
      return fail("unknown option " + std::string(word));
    }
    if (++at == argc) {
      return fail(std::string(word) + " requires a value");
    }
    if (text != nullptr) {
      *text = argv[at];
      continue;
    }
    const auto number = number_in(argv[at]);
    if (!number) {
      return fail(std::string(word) + " " + argv[at] + ": not a positive number");
    }
    if (time != nullptr) {
      *time = std::chrono::seconds(*number);
    } else {
      options.max_descriptors = *number;
    }
  }
  options.argv.assign(argv + at, argv + argc);
  if (options.argv.empty()) {
    return fail("no program to start");
  }
  if (options.socket_path.empty()) {
    return fail("no notification socket: use --socket, or set RUNTIME_DIRECTORY");
  }
  gpushm::set_log_sink([](gpushm::log_level /*level*/, std::string_view text) {
    gpushm::app::write_log_line("gpushm-keeper", text);
  });
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
