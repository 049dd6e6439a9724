// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/doctor_ipc.hpp"
#include "apps/gpushm/inspect/doctor_report.hpp"
#include "apps/gpushm/inspect/inspect_options.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "apps/gpushm/inspect/peer.hpp"
#include "apps/gpushm/options.hpp"
#include "base/files/domain_places.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

void add_doctor_arguments(CLI::App& app, doctor_arguments& arguments) {
  auto* pid = add_text(
      app, "--peer", "PID", "Predict sharing with this process", [&](const std::string& text) {
        arguments.peer_pid = parse_number<std::int32_t>("--peer", text, 10, "a PID");
        if (arguments.peer_pid < 1) {
          refuse("--peer", text, "a PID");
        }
      });
  app.add_option(
         "--peer-container", arguments.peer_container, "Predict sharing with this container")
      ->type_name("NAME")
      ->excludes(pid);
  auto* ipc = app.add_flag(
      "--ipc", arguments.ipc, "Check CUDA IPC of unchanged programs (libgpushm-ipc.so) instead");
  ipc->excludes(pid)->excludes(app.get_option("--peer-container"));
  add_ipc_library(app, arguments.ipc_library);
  app.add_flag_callback(
      "--no-selftest", [&] { arguments.selftest = false; }, "Do not test sharing on each GPU");
  app.add_flag("--accept-fake-chunks", arguments.accept_fake_chunks)->group("");
  add_socket(app, arguments.socket);
  add_from(app, arguments.from);
  app.get_option("--from")->excludes(ipc);
  add_driver_timeout(app, arguments.driver_timeout);
  add_json(app, arguments.json);
}

inspect::broker_facts query_broker(const std::string& socket) {
  inspect::broker_facts facts;
  try {
    auto broker = client::connect({.socket_path = socket});
    const auto about = broker.broker();
    facts.socket = about.socket_path;
    facts.domain = about.domain;
    facts.protocol = static_cast<int>(about.protocol_version);
    facts.segments = broker.list().size();
    facts.fence = std::string(to_string(about.fence));
    facts.reachable = true;
  } catch (const error& failure) {
    facts.socket = socket;
    facts.problem = failure.what();
  }
  return facts;
}

/// A broker that works may be another one than a program expects: names those that are not used.
void name_other_brokers(std::vector<inspect::check>& checks, const std::string& used) {
  std::vector<std::string> others = base::listening_sockets();
  std::erase(others, used);
  const auto broker = std::find_if(
      checks.begin(), checks.end(), [](const auto& each) { return each.id == "broker"; });
  if (others.empty() || broker == checks.end() || broker->result != inspect::verdict::ok) {
    return;
  }
  broker->result = inspect::verdict::note;
  for (const std::string& each : others) {
    broker->seen += (each == others.front() ? "; not used: the broker at " : ", ") + each;
  }
  broker->why =
      "programs that use different brokers do not see each other's segments. A program uses the "
      "socket that it is given, else GPUSHM_SOCKET, else the machine's broker (/run/gpushm/d), "
      "else "
      "that of its user";
  broker->remedy = "export GPUSHM_SOCKET=" + others.front() +
                   " for all programs that share, or end one of the brokers";
}

std::vector<std::string> visible_gpus(const inspect::facts& facts) {
  std::vector<std::string> uuids;
  for (const inspect::cuda_gpu_view& each : facts.driver.cuda.gpus) {
    uuids.push_back(each.uuid);
  }
  return uuids;
}

/// Rejects options that a recording cannot serve, before gathering facts.
void check_arguments(const doctor_arguments& arguments) {
  if (!arguments.from.empty() && (arguments.peer_pid != 0 || !arguments.peer_container.empty())) {
    throw usage_error(errc::invalid_argument,
                      "doctor",
                      "--peer",
                      "a recorded machine has no processes to compare with",
                      "run it without --from on that machine");
  }
}

int run_doctor(const doctor_arguments& arguments) {
  check_arguments(arguments);
  if (arguments.ipc) {
    return run_doctor_ipc(arguments);
  }
  const auto begin = std::chrono::steady_clock::now();
  const pid_t peer = arguments.peer_container.empty()
                         ? arguments.peer_pid
                         : pid_of_container(arguments.peer_container, known_runtimes());
  if (peer != 0 && ::access(("/proc/" + std::to_string(peer)).c_str(), F_OK) != 0) {
    throw error(errc::invalid_argument,
                "doctor",
                "--peer " + std::to_string(peer),
                "no such process",
                "pass its PID as listed in this process's /proc");
  }
  doctor_report report;
  report.live = arguments.from.empty();
  if (peer != 0) {
    // Before the driver is called, which creates missing device nodes.
    report.peer_minors = minors_of(peer, driver::dev_root());
  }
  machine seen = gather_machine(arguments.from, arguments.driver_timeout, {.peer_pid = peer});
  if (peer != 0) {
    seen.facts.peer_minors = report.peer_minors.minors;
    report.predictions = inspect::compare_with_peer(seen.facts);
  }
  if (report.live) {
    seen.facts.broker = query_broker(arguments.socket);
  }
  report.checks = inspect::examine(seen.facts);
  if (report.live) {
    name_other_brokers(report.checks, seen.facts.broker->socket);
  }
  report.facts = std::move(seen.facts);
  report.recording = std::move(seen.recording);
  report.check_time = std::chrono::steady_clock::now() - begin;
  if (report.live && arguments.selftest) {
    selftest_options options;
    options.gpus = visible_gpus(report.facts);
    options.accept_fake_chunks = arguments.accept_fake_chunks;
    report.selftest = run_selftest(options);
    report.tried = true;
  }
  return finish_report(report, begin, arguments.json);
}

}  // namespace

void add_doctor(command_list& commands) {
  add_command<doctor_arguments>(commands,
                                "doctor",
                                "Check whether sharing works on this machine, and suggest fixes",
                                add_doctor_arguments,
                                run_doctor);
}

}  // namespace gpushm::cli
