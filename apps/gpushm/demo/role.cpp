// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/demo/demo_arguments.hpp"
#include "apps/gpushm/demo/isolation.hpp"
#include "apps/gpushm/demo/pattern.hpp"
#include "apps/gpushm/demo/role_channel.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "gpushm/broker.hpp"

namespace gpushm::cli {

namespace {

/// One of the demo's processes; `gpushm demo` starts its own executable with these.
struct demo_role_arguments {
  std::string role;  ///< "broker", "producer" or "consumer"
  std::string socket;
  std::string name;
  std::string device;
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;         ///< of the pattern that it writes, or reads first
  std::uint64_t answer_seed = 0;  ///< of the pattern written back; 0: none
  std::chrono::milliseconds timeout{60'000};
  bool isolate = false;
  uid_t uid = 0;  ///< when isolated
  corrupt_stage corrupt = corrupt_stage::none;
};

void add_demo_role_arguments(CLI::App& app, demo_role_arguments& arguments) {
  app.group("");
  app.add_option("ROLE", arguments.role)->required();
  app.add_option("--socket", arguments.socket);
  app.add_option("--name", arguments.name);
  app.add_option("--device", arguments.device);
  app.add_option("--size-bytes", arguments.size_bytes);
  app.add_option("--seed", arguments.seed);
  app.add_option("--answer-seed", arguments.answer_seed);
  add_duration(app, "--timeout", "", [&](auto value) { arguments.timeout = value; });
  app.add_flag("--isolate", arguments.isolate);
  app.add_option("--uid", arguments.uid);
  add_choice(app, "--corrupt", "", arguments.corrupt, corrupt_stages());
}

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point start) {
  return std::chrono::duration<double>(clock::now() - start).count();
}

// Terminates the role at its deadline, even in a blocking call. The handler is required: the first
// process of a PID namespace ignores signals without one.
void limit_lifetime(std::chrono::milliseconds timeout) {
  struct sigaction action {};
  action.sa_handler = [](int) { ::_exit(124); };
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(static_cast<unsigned>(std::max<std::int64_t>(1, timeout.count() / 1000)));
}

void report_started() {
  json details{
      {"pid", ::getpid()}, {"uid", ::geteuid()}, {"capabilities", effective_capabilities()}};
  json names = json::object();
  for (const std::string_view name : isolated_namespaces) {
    names[std::string(name)] = namespace_text(name);
  }
  details["namespaces"] = std::move(names);
  report("started", details);
}

json describe(const segment& mapped, double seconds) {
  json details = to_json(mapped);
  details["state"] = to_string(mapped.state());
  details["seconds"] = seconds;
  return details;
}

void check(const segment& mapped, std::uint64_t seed) {
  const auto start = clock::now();
  const check_result result = check_segment(mapped, seed);
  report("checked",
         json{{"checked_bytes", result.checked_bytes},
              {"wrong_bytes", result.wrong_bytes},
              {"first_wrong_offset", result.first_wrong_offset},
              {"seconds", seconds_since(start)}});
}

void fill(segment& mapped, std::uint64_t seed, bool corrupt) {
  const auto start = clock::now();
  fill_segment(mapped, seed);
  if (corrupt) {
    corrupt_segment(mapped);
  }
  report("filled", json{{"seconds", seconds_since(start)}});
}

client connect_role(const demo_role_arguments& arguments) {
  connection_arguments connection;
  connection.socket = arguments.socket;
  connection.connect_timeout = arguments.timeout;
  return connect(connection);
}

int run_broker(const demo_role_arguments& arguments) {
  broker_options options;
  options.socket_path = arguments.socket;
  options.domain = "demo";
  // The directory is private to the demo, and isolated clients do not have the broker's uid.
  options.mode = 0666;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): never set here
  const char* fake_gpus = std::getenv("GPUSHM_FAKE_GPU_ROOT");
  options.accept_fake_chunks = fake_gpus != nullptr;
  const broker running = broker::start(options);
  report("ready");
  static_cast<void>(next_command());
  return exit_ok;
}

int run_producer(const demo_role_arguments& arguments) {
  client broker = connect_role(arguments);
  create_options options;
  options.size_bytes = arguments.size_bytes;
  options.device = arguments.device;
  options.lifetime = lifetime::persistent;
  const auto start = clock::now();
  segment created = broker.create(arguments.name, options);
  report("created", describe(created, seconds_since(start)));
  fill(created, arguments.seed, arguments.corrupt == corrupt_stage::fill);
  const auto publishing = clock::now();
  created.publish("gpushm demo");
  report("published", json{{"seconds", seconds_since(publishing)}});
  while (next_command() == "check") {
    check(created, arguments.answer_seed);
    if (arguments.corrupt == corrupt_stage::survive) {
      corrupt_segment(created);
    }
    report("idle");
  }
  return exit_ok;
}

int run_consumer(const demo_role_arguments& arguments) {
  client broker = connect_role(arguments);
  report("connected");
  open_options options;
  options.access = arguments.answer_seed == 0 ? access::read : access::read_write;
  options.timeout = arguments.timeout;
  options.device = arguments.device;
  options.expected_size_bytes = arguments.size_bytes;
  const auto start = clock::now();
  segment opened = broker.open(arguments.name, options);
  report("opened", describe(opened, seconds_since(start)));
  check(opened, arguments.seed);
  if (arguments.answer_seed != 0) {
    fill(opened, arguments.answer_seed, arguments.corrupt == corrupt_stage::rewrite);
  }
  static_cast<void>(next_command());
  return exit_ok;
}

int dispatch(const demo_role_arguments& arguments) {
  if (arguments.role == "broker") {
    return run_broker(arguments);
  }
  if (arguments.role == "producer") {
    return run_producer(arguments);
  }
  if (arguments.role == "consumer") {
    return run_consumer(arguments);
  }
  throw usage_error(errc::invalid_argument, "demo-role", arguments.role, "unknown role");
}

int run_demo_role(const demo_role_arguments& arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const rlimit no_core{0, 0};  // the demo kills its producer on purpose
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    if (arguments.isolate) {
      isolate(arguments.uid, "demo-" + arguments.role, [](pid_t child) {
        report("isolated", json{{"pid", child}});
      });
    }
    limit_lifetime(arguments.timeout);
    report_started();
    return dispatch(arguments);
  } catch (const error& failure) {
    report("failed", json{{"error", to_json(failure)}});
    return exit_failed;
  }
}

}  // namespace

void add_demo_role(command_list& commands) {
  add_command<demo_role_arguments>(
      commands, "demo-role", "", add_demo_role_arguments, run_demo_role);
}

}  // namespace gpushm::cli
