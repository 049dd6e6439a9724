// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/arguments.hpp"

#include <CLI/CLI.hpp>
#include <span>

#include "apps/gpushm/options.hpp"

namespace gpushm::cli {

namespace {

void add_from(CLI::App& app, std::string& from) {
  app.add_option(
         "--from", from, "Use a machine recorded with \"doctor --json\" instead of this one")
      ->type_name("FILE");
}

void add_driver_timeout(CLI::App& app, std::chrono::milliseconds& timeout) {
  add_duration(app,
               "--driver-timeout",
               "Maximum time to wait for the driver (default: 30s)",
               [&](auto value) { timeout = value; });
}

void add_socket(CLI::App& app, std::string& socket) {
  app.add_option("--socket", socket, "The broker's socket (default: as for all commands)")
      ->type_name("PATH");
}

void add_ipc_library(CLI::App& app, std::string& path) {
  app.add_option(
         "--ipc-library", path, "The libgpushm-ipc.so to preload (default: the installed one)")
      ->type_name("PATH");
}

}  // namespace

void add_doctor(CLI::App& app, doctor_arguments& out) {
  auto* pid = add_text(
      app, "--peer", "PID", "Predict sharing with this process", [&](const std::string& text) {
        out.peer_pid = parse_number<std::int32_t>("--peer", text, 10, "a PID");
        if (out.peer_pid < 1) {
          refuse("--peer", text, "a PID");
        }
      });
  app.add_option("--peer-container", out.peer_container, "Predict sharing with this container")
      ->type_name("NAME")
      ->excludes(pid);
  auto* ipc = app.add_flag(
      "--ipc", out.ipc, "Check CUDA IPC of unchanged programs (libgpushm-ipc.so) instead");
  ipc->excludes(pid)->excludes(app.get_option("--peer-container"));
  add_ipc_library(app, out.ipc_library);
  app.add_flag_callback(
      "--no-selftest", [&] { out.selftest = false; }, "Do not test sharing on each GPU");
  app.add_flag("--accept-fake-chunks", out.accept_fake_chunks)->group("");
  add_socket(app, out.socket);
  add_from(app, out.from);
  app.get_option("--from")->excludes(ipc);
  add_driver_timeout(app, out.driver_timeout);
  add_json(app, out.json);
}

void add_explain(CLI::App& app, explain_arguments& out) {
  app.add_option("ERROR", out.words, "Text, name or number of an error; - reads standard input")
      ->required()
      ->type_name("");
  auto* here =
      app.add_flag("--here", out.here, "The error is from this machine: use its state, too");
  add_from(app, out.from);
  here->excludes(app.get_option("--from"));
  add_driver_timeout(app, out.driver_timeout);
  add_json(app, out.json);
}

void add_topo(CLI::App& app, topo_arguments& out) {
  add_json(app, out.json);
  auto* json = app.get_option("--json");
  auto* dot = app.add_flag_callback(
      "--dot", [&] { out.picture = topo_picture::dot; }, "Print a graph for Graphviz");
  auto* svg = app.add_flag_callback(
      "--svg", [&] { out.picture = topo_picture::svg; }, "Print an SVG picture");
  json->excludes(dot)->excludes(svg);
  dot->excludes(svg);
  app.add_flag("--measure", out.measure, "Measure bandwidth and latency between the GPUs");
  add_from(app, out.from);
  add_driver_timeout(app, out.driver_timeout);
  add_socket(app, out.socket);
}

void add_matrix(CLI::App& app, matrix_arguments& out) {
  app.add_option("--runtime", out.runtime, "runc (default), crun, or a path")->type_name("NAME");
  add_json(app, out.json);
  app.add_flag("--markdown", out.markdown, "Print a Markdown page")
      ->excludes(app.get_option("--json"));
  std::string names;
  for (const auto& ways : {std::span<const inspect::way>(inspect::all_ways),
                           std::span<const inspect::way>(inspect::ipc_ways)}) {
    for (const inspect::way each : ways) {
      names += (names.empty() ? "" : ",") + std::string(to_string(each));
    }
  }
  app.add_option_function<std::vector<std::string>>(
         "--backends",
         [&, names](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             const auto parsed = inspect::parse_way(text);
             if (!parsed) {
               refuse("--backends", text, "some of " + names);
             }
             out.ways.push_back(*parsed);
           }
         },
         "Only these columns: " + names)
      ->delimiter(',')
      ->type_name("LIST");
  app.add_option("--devices", out.devices, "One or two GPUs to use (default: the first two)")
      ->delimiter(',')
      ->expected(1, 2)
      ->type_name("LIST");
  app.add_option("--bind", out.binds, "An additional host path for the containers")
      ->type_name("PATH");
  app.add_option("--env", out.variables, "An additional environment variable for the containers")
      ->type_name("NAME");
  add_ipc_library(app, out.ipc_library);
  app.add_flag("--measure", out.measure, "Measure the bandwidth of each pair, with 256 MiB");
  app.add_flag("--accept-fake-chunks", out.accept_fake_chunks)->group("");
  add_duration(app, "--timeout", "Time limit of the whole run (default: 5m)", [&](auto value) {
    out.timeout = value;
  });
}

void add_probe_driver(CLI::App& app, probe_driver_arguments& /*out*/) {
  app.group("");
}

void add_measure_worker(CLI::App& app, measure_worker_arguments& /*out*/) {
  app.group("");
}

void add_trial_worker(CLI::App& app, trial_worker_arguments& out) {
  app.group("");
  app.add_flag("--own-namespaces", out.own_namespaces);
  app.add_flag("--own-files", out.own_files);
  app.add_option("--spare-pids", out.spare_pids);
  app.add_option("--ipc-library", out.ipc_library);
  app.add_option("--ipc-socket", out.ipc_socket);
}

void add_trial_side(CLI::App& app, trial_side_arguments& out) {
  app.group("");
  app.add_option("--way", out.way)->required();
  app.add_option("--ipc-library", out.ipc_library)->required();
}

}  // namespace gpushm::cli
