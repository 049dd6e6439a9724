// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/core.h>
#include <grp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/detached.hpp"
#include "apps/gpushm/segment/readiness.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/log_line.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/files/domain_places.hpp"
#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "base/text/size_text.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

struct serve_arguments {
  broker_options broker;
  std::string group;
  std::string log_level = "info";
  std::optional<int> ready_fd;
  bool detach = false;
  /// Exit after this time without clients and segments; nullopt: never.
  std::optional<std::chrono::milliseconds> idle_exit;
};

void add_serve_arguments(CLI::App& app, serve_arguments& arguments) {
  broker_options& broker = arguments.broker;
  app.add_option(
         "--socket",
         broker.socket_path,
         "Socket to listen on (else $GPUSHM_SOCKET, /run/gpushm/d/…, $XDG_RUNTIME_DIR/gpushm/d/…)")
      ->type_name("PATH");
  app.add_option("--domain", broker.domain, "Name of the domain (default: default)")
      ->type_name("NAME");
  add_mode(app, "--mode", "Permissions of the socket (default: 0660)", [&](mode_t mode) {
    broker.mode = mode;
  });
  app.add_option("--group", arguments.group, "Group that owns the socket")->type_name("NAME|GID");
  add_text(app,
           "--ready-fd",
           "N",
           "Write a line feed to this descriptor when ready, then close it",
           [&](const std::string& text) {
             arguments.ready_fd =
                 parse_number<int>("--ready-fd", text, 10, "a file descriptor number");
           });
  app.add_flag(
      "--detach", arguments.detach, "Return when it is ready; it continues in the background");
  add_duration(app,
               "--idle-exit",
               "Exit after this time without a client and without a segment (default: never)",
               [&](auto value) { arguments.idle_exit = value; });
  add_size(app,
           "--quota",
           "Maximum size of all segments in host memory, and on each GPU (default: no limit)",
           [&](std::uint64_t value) { broker.limits.quota_bytes = value; });
  add_size(app,
           "--quota-per-principal",
           "The same for the segments of one pod, container or uid (default: no limit)",
           [&](std::uint64_t value) { broker.limits.quota_bytes_per_principal = value; });
  add_size(app,
           "--memory",
           "Maximum memory of the broker that members can occupy (default: half of the memory "
           "available to it, at most 1 GiB)",
           [&](std::uint64_t value) { broker.limits.memory_bytes = value; });
  add_count(app,
            "--max-segments",
            "Maximum number of segments (default: 65536)",
            broker.limits.max_segments);
  add_count(app,
            "--max-connections",
            "Maximum number of concurrent clients (default: 4096)",
            broker.limits.max_connections);
  add_duration(
      app,
      "--fence-delay",
      "How long the leases of a dead client are kept if nothing proves that its GPU work "
      "has ended (default: 5s)",
      [&](auto value) {
        if (value > std::chrono::hours(1)) {
          refuse("--fence-delay", app::duration_text(value), "a duration of at most one hour");
        }
        broker.limits.fence_delay_ms = static_cast<std::uint32_t>(value.count());
      });
  add_text(app,
           "--log-level",
           "debug|info|warning|error|off",
           "Lowest level that is logged to standard error (default: info)",
           [&](const std::string& text) {
             constexpr auto levels =
                 std::to_array<std::string_view>({"debug", "info", "warning", "error", "off"});
             if (std::find(levels.begin(), levels.end(), text) == levels.end()) {
               refuse("--log-level", text, "one of debug|info|warning|error|off");
             }
             arguments.log_level = text;
           });
  app.add_flag("--accept-fake-chunks",
               broker.accept_fake_chunks,
               "Accept the memory of the fake GPU driver (tests only)");
}

/// "off": no log.
void start_log(const std::string& level) {
  const auto least = app::log_level_of(level);
  if (!least) {
    return;
  }
  const auto log = std::make_shared<app::program_log>("gpushm", *least);
  set_log_sink(
      [log](log_level line_level, std::string_view text) { log->write(line_level, text); });
  base::log(log_level::info, "version " GPUSHM_VERSION);
}

void check_domain(const std::string& domain) {
  const bool valid = !domain.empty() && domain.size() <= 63 && domain[0] != '.' &&
                     std::all_of(domain.begin(), domain.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                     });
  if (!valid) {
    throw usage_error(errc::invalid_argument,
                      "serve",
                      domain,
                      "not a valid domain name: it is used as a directory name",
                      "use up to 63 letters, digits, '-', '_' and '.', not starting with '.'");
  }
}

std::string socket_path(const serve_arguments& arguments) {
  if (!arguments.broker.socket_path.empty()) {
    return arguments.broker.socket_path;
  }
  // Clients use it first, so one exported variable configures both sides.
  const char* variable =
      std::getenv("GPUSHM_SOCKET");  // NOLINT(concurrency-mt-unsafe): never set here
  if (variable != nullptr && *variable != '\0') {
    return variable;
  }
  return {};
}

// The directory of an explicit path must exist: creating it could hide a volume that is not mounted
// yet.
void check_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::absolute(path).parent_path();
  std::error_code failed;
  if (!std::filesystem::is_directory(directory, failed)) {
    throw error(errc::system_error,
                "serve",
                path,
                fmt::format("the directory {} does not exist", directory.string()),
                "create it: mkdir -p " + directory.string());
  }
}

std::optional<gid_t> find_group(const std::string& group) {
  if (group.empty()) {
    return std::nullopt;
  }
  gid_t number = 0;
  const auto [end, failed] = std::from_chars(group.data(), group.data() + group.size(), number);
  if (failed == std::errc() && end == group.data() + group.size()) {
    return number;
  }
  const struct group* entry =
      ::getgrnam(group.c_str());  // NOLINT(concurrency-mt-unsafe): still one thread
  if (entry == nullptr) {
    throw usage_error(errc::invalid_argument,
                      "serve --group",
                      group,
                      "the group does not exist",
                      "list the groups: getent group");
  }
  return entry->gr_gid;
}

void check_ready_fd(const std::optional<int>& fd) {
  if (fd && ::fcntl(*fd, F_GETFD) == -1) {
    throw usage_error(errc::invalid_argument,
                      "serve --ready-fd",
                      std::to_string(*fd),
                      "the descriptor is not open in this process",
                      "open it for the child, for instance: gpushm serve --ready-fd 3 3>FIFO");
  }
}

// Persistent segments are lost with this process, which must not happen silently.
void report_lost(client& observer) {
  std::vector<segment_info> lost = observer.list();
  lost.erase(std::remove_if(
                 lost.begin(),
                 lost.end(),
                 [](const segment_info& info) { return info.lifetime != lifetime::persistent; }),
             lost.end());
  for (const segment_info& info : lost) {
    note(fmt::format("lost persistent segment \"{}\", {} on {}",
                     info.name,
                     base::size_text(info.size_bytes),
                     info.device.text()));
  }
}

// Clients that are given no socket find another broker first, or cannot choose one.
void warn_if_hidden(const std::string& socket) {
  const std::vector<std::string> listening = base::listening_sockets();
  if (std::find(listening.begin(), listening.end(), socket) != listening.end() &&
      listening.front() != socket) {
    note(
        fmt::format("another broker listens at {}, so tell clients which one to use: export "
                    "GPUSHM_SOCKET={}",
                    listening.front(),
                    socket));
  }
}

/// No client but `observer`, and no segment.
bool is_idle(const broker& running) {
  const broker_statistics now = running.statistics();
  return now.connections <= 1 && now.ending_connections == 0 && now.segments == 0;
}

/// Whether the broker is still idle when clients can no longer connect to it.
bool leaves(const broker& running, const std::string& socket) {
  const std::string hidden = socket + ".idle";
  std::error_code failed;
  std::filesystem::rename(socket, hidden, failed);
  if (failed) {
    return is_idle(running);
  }
  // A client that has connected before is accepted by then.
  base::pause_before_retry(std::chrono::milliseconds(100));
  if (is_idle(running)) {
    std::filesystem::remove(hidden, failed);
    return true;
  }
  std::filesystem::rename(hidden, socket, failed);
  return false;
}

/// Blocks until a signal arrives, or until the broker has been idle for as long as `limit`.
void serve_until_end(const broker& running,
                     const app::stop_signal& stop,
                     const std::optional<std::chrono::milliseconds>& limit) {
  using clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const milliseconds turn =
      limit ? std::clamp<milliseconds>(*limit / 4, milliseconds(10), std::chrono::seconds(1))
            : std::chrono::hours(1);
  clock::time_point last_use = clock::now();
  while (!stop.wait(turn)) {
    if (!limit || !is_idle(running)) {
      last_use = clock::now();
    } else if (clock::now() - last_use >= *limit) {
      if (leaves(running, running.socket_path())) {
        return;
      }
      last_use = clock::now();
    }
  }
}

int run_serve(const serve_arguments& arguments) {
  check_ready_fd(arguments.ready_fd);
  check_domain(arguments.broker.domain);
  broker_options options = arguments.broker;
  options.group = find_group(arguments.group);
  options.socket_path = socket_path(arguments);
  if (options.socket_path.empty()) {
    options.socket_path = base::socket_to_serve(options.domain);
  }
  check_directory(options.socket_path);
  std::optional<detached> background;
  if (arguments.detach) {
    options.socket_path = std::filesystem::absolute(options.socket_path).string();
    if (background.emplace().parent_status()) {
      return *background->parent_status();
    }
  }
  // The process runs nothing else, so the broker may raise its limit.
  options.raise_descriptor_limit = true;
  // For `observer` below.
  ++options.limits.max_connections;
  // A closed standard output must not terminate the broker.
  ::signal(SIGPIPE, SIG_IGN);
  start_log(arguments.log_level);
  const app::stop_signal stop;
  const broker running = broker::start(options);
  connect_options own;
  own.socket_path = running.socket_path();
  client observer = client::connect(own);

  if (background) {
    background->show_messages();
  }
  print_line(
      fmt::format("gpushm: serving domain \"{}\" at {}", options.domain, running.socket_path()));
  flush_output();
  warn_if_hidden(options.socket_path);
  if (arguments.ready_fd) {
    notify_ready_fd(*arguments.ready_fd);
  }
  if (!notify_service_manager("READY=1")) {
    base::log(log_level::warning, "cannot send readiness to NOTIFY_SOCKET");
  }
  if (background) {
    background->ready();
  }
  serve_until_end(running, stop, arguments.idle_exit);
  static_cast<void>(notify_service_manager("STOPPING=1"));
  report_lost(observer);
  return exit_ok;
}

}  // namespace

void add_serve(command_list& commands) {
  add_command<serve_arguments>(
      commands, "serve", "Run a broker in the foreground", add_serve_arguments, run_serve);
}

}  // namespace gpushm::cli
