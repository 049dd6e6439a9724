// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/registry/watch.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/problem_json.hpp"
#include "apps/gpushm/cdi/spec_directories.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/files/syscall.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cli {

namespace {

struct watch_arguments {
  std::vector<std::string> directories;
  bool json = false;
};

void add_watch_arguments(CLI::App& app, watch_arguments& out) {
  add_spec_directories(app, out.directories);
  add_json(app, out.json);
}

class event_printer {
 public:
  explicit event_printer(bool as_json) : json_(as_json) {}

  void device(const char* event, const std::string& name, const cdi::source& source) const {
    if (json_) {
      print_json({{"event", event}, {"device", name}, {"file", source.path}});
    } else {
      print_line(fmt::format("{} {} {}", event, name, source.path));
    }
    flush_output();
  }
  void problem(const char* event, const yaml::problem& problem) const {
    if (json_) {
      json line{{"event", event}};
      line.update(to_json(problem));
      print_json(line);
    } else {
      print_line(fmt::format("{} {}", event, yaml::to_string(problem)));
    }
    flush_output();
  }

 private:
  bool json_;
};

/// Whether both give a container the same edits.
bool same(const cdi::registered_device& a, const cdi::registered_device& b) {
  return a.from->path == b.from->path && *a.found == *b.found &&
         a.from->content.changes == b.from->content.changes;
}

void print_devices(const event_printer& print,
                   const cdi::registry& before,
                   const cdi::registry& now) {
  for (const auto& [name, device] : before.devices()) {
    if (now.find(name).found == nullptr) {
      print.device("removed", name, *device.from);
    }
  }
  for (const auto& [name, device] : now.devices()) {
    const cdi::registered_device old = before.find(name);
    if (old.found == nullptr) {
      print.device("added", name, *device.from);
    } else if (!same(old, device)) {
      print.device("changed", name, *device.from);
    }
  }
}

void print_problems(const event_printer& print,
                    const cdi::registry& before,
                    const cdi::registry& now) {
  const auto old = before.problems();
  const auto fresh = now.problems();
  const auto among = [](const auto& problems, const yaml::problem& problem) {
    return std::find(problems.begin(), problems.end(), problem) != problems.end();
  };
  for (const yaml::problem& each : old) {
    if (!among(fresh, each)) {
      print.problem("solved", each);
    }
  }
  for (const yaml::problem& each : fresh) {
    if (!among(old, each)) {
      print.problem("problem", each);
    }
  }
}

/// Returns false on a signal to stop.
bool wait_for_change(cdi::registry_watch& watch) {
  while (true) {
    std::array<pollfd, 2> waiting{{{app::stop_signal::fd(), POLLIN, 0}, {watch.fd(), POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) {
      base::throw_errno(errno, "watch CDI directories", {}, "poll");
    }
    if (waiting[0].revents != 0) {
      return false;
    }
    if (waiting[1].revents != 0 && watch.wait(std::chrono::milliseconds(0))) {
      return true;
    }
  }
}

int run_watch_command(const watch_arguments& arguments) {
  const app::stop_signal stop;
  const event_printer print(arguments.json);
  const auto directories = spec_directories(arguments.directories);
  // Created before reading, so that no change is missed.
  cdi::registry_watch watch(directories);
  cdi::registry before(std::vector<std::string>{});
  cdi::registry now(directories);
  do {
    print_devices(print, before, now);
    print_problems(print, before, now);
    before = now;
    do {
      if (!wait_for_change(watch)) {
        return exit_ok;
      }
    } while (!now.refresh());
  } while (true);
}

}  // namespace

void add_cdi_watch(command_list& commands) {
  add_command<watch_arguments>(commands,
                               "watch",
                               "Print devices and problems as they are added and removed",
                               add_watch_arguments,
                               run_watch_command);
}

}  // namespace gpushm::cli
