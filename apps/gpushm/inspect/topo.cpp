// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/inspect_options.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "apps/gpushm/inspect/measure.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/registrations.hpp"
#include "apps/support/duration.hpp"
#include "base/text/text.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/topology/json.hpp"
#include "inspect/topology/topology.hpp"

namespace gpushm::cli {

namespace {

enum class topo_picture : std::uint8_t { none, dot, svg };

struct topo_arguments {
  topo_picture picture = topo_picture::none;  ///< none: text
  bool measure = false;
  std::string from;
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  std::string socket;
  bool json = false;
};

void add_topo_arguments(CLI::App& app, topo_arguments& arguments) {
  add_json(app, arguments.json);
  auto* json = app.get_option("--json");
  auto* dot = app.add_flag_callback(
      "--dot", [&] { arguments.picture = topo_picture::dot; }, "Print a graph for Graphviz");
  auto* svg = app.add_flag_callback(
      "--svg", [&] { arguments.picture = topo_picture::svg; }, "Print an SVG picture");
  json->excludes(dot)->excludes(svg);
  dot->excludes(svg);
  app.add_flag("--measure", arguments.measure, "Measure bandwidth and latency between the GPUs");
  add_from(app, arguments.from);
  add_driver_timeout(app, arguments.driver_timeout);
  add_socket(app, arguments.socket);
}

using inspect::measured_pair;
using inspect::open_segment;
using inspect::topology;

constexpr std::chrono::seconds measuring_limit{120};

// ---- input ----

struct shown_domain {
  std::vector<open_segment> segments;
  std::vector<exporter> exporters;  ///< to unchanged programs
};

/// The contents of the broker's domain; empty without a broker, which is optional here.
shown_domain list_domain(const std::string& socket) {
  shown_domain shown;
  try {
    connect_options options;
    options.socket_path = socket;
    options.request_limit = std::chrono::seconds(2);
    client broker = client::connect(options);
    for (const segment_info& each : broker.list()) {
      shown.segments.push_back({each.name, each.size_bytes, each.device.uuid});
    }
    shown.exporters = exporters_of(list_registrations(broker));
  } catch (const error& failure) {
    if (!socket.empty()) {
      note("no segments are shown: " + base::printable(failure.what()));
    }
  }
  return shown;
}

// ---- JSON ----

nlohmann::json to_json(const open_segment& segment) {
  return {{"name", segment.name}, {"size_bytes", segment.size_bytes}, {"device", segment.device}};
}

/// Reads measurements and segments from the output of `topo --json`; none from other documents.
void read_back(const nlohmann::json& document, const std::string& path, topology& topology) {
  try {
    topology.measured =
        document.value("measured", nlohmann::json::array()).get<std::vector<measured_pair>>();
    for (const auto& each : document.value("segments", nlohmann::json::array())) {
      topology.segments.push_back({each.at("name").get<std::string>(),
                                   each.at("size_bytes").get<std::uint64_t>(),
                                   each.at("device").get<std::string>()});
    }
  } catch (const nlohmann::json::exception&) {
    throw error(errc::invalid_argument,
                "read recording",
                path,
                R"("measured" or "segments" do not have the format of "topo --json")",
                R"(record it again with "gpushm topo --json" on that machine)");
  }
}

void print_document(const topology& topology,
                    const std::vector<exporter>& exporters,
                    const nlohmann::json& recording) {
  const nlohmann::json facts = topology.machine;
  nlohmann::json document{{"gpus", facts.at("gpus")},
                          {"pairs", facts.at("pairs")},
                          {"measured", topology.measured},
                          {"segments", nlohmann::json::array()},
                          {"ipc_exporters", nlohmann::json::array()},
                          {"recording", recording}};
  for (const open_segment& each : topology.segments) {
    document["segments"].push_back(to_json(each));
  }
  for (const exporter& each : exporters) {
    document["ipc_exporters"].push_back(nlohmann::json(to_json(each)));
  }
  print_json(document);
}

int run_topo(const topo_arguments& arguments) {
  if (arguments.measure && !arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "topo",
                      arguments.from,
                      "a recorded machine cannot be measured",
                      "omit --measure or --from");
  }
  machine seen = gather_machine(arguments.from, arguments.driver_timeout);
  topology topology;
  std::vector<exporter> exporters;
  topology.machine = std::move(seen.facts);
  if (arguments.from.empty()) {
    shown_domain shown = list_domain(arguments.socket);
    topology.segments = std::move(shown.segments);
    exporters = std::move(shown.exporters);
    if (arguments.measure) {
      topology.measured = measure_gpus(base::deadline_in(measuring_limit));
    }
  } else {
    read_back(seen.document, arguments.from, topology);
  }
  const bool says_so = !arguments.json && arguments.picture == topo_picture::none;
  if (const std::string problem = inspect::driver_problem(topology.machine);
      !problem.empty() && !says_so) {
    note(fmt::format("driver not usable: {} (run gpushm doctor for the cause and a fix)", problem));
  }
  if (arguments.json) {
    print_document(topology, exporters, seen.recording);
  } else if (arguments.picture == topo_picture::dot) {
    print(topology_dot(topology));
  } else if (arguments.picture == topo_picture::svg) {
    print(topology_svg(topology));
  } else {
    print(topology_text(topology));
    if (!exporters.empty()) {
      print("\nExporters to unchanged programs (gpushm ls --ipc)\n\n" + exporters_text(exporters));
    }
  }
  flush_output();
  return exit_ok;
}

}  // namespace

void add_topo(command_list& commands) {
  add_command<topo_arguments>(
      commands, "topo", "Show the GPUs and their connections", add_topo_arguments, run_topo);
}

}  // namespace gpushm::cli
