// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/registrations.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

void add_list_arguments(CLI::App& app, list_arguments& arguments) {
  app.add_option("PREFIX", arguments.prefix, "List only names with this prefix")->type_name("");
  app.add_flag("-q,--names", arguments.names_only, "Print only the names, one per line");
  app.add_flag("-a,--all", arguments.all, "Also list the library's own segments (NAME/~…)");
  app.add_flag("--ipc", arguments.ipc, "List processes that export to unchanged programs");
  auto* const by_option =
      add_choice(app,
                 "--by",
                 "For operators of gpushm-brokerd: by pod, container or uid, with ages and "
                 "who has them open",
                 arguments.by_principal,
                 {{"principal", true}});
  add_text(
      app,
      "--pods",
      "FILE",
      "Names of pods: lines of UID, namespace and name, as kubectl prints them (- for standard "
      "input)",
      [&](const std::string& text) { arguments.pods = text; })
      ->needs(by_option);
  for (CLI::Option* const each : add_node(app, arguments.node)) {
    each->needs(by_option);
  }
  add_connection(app, arguments.connection);
}

/// Removes the library's own segments, unless all were asked for. Returns their number.
std::size_t hide_internal(const list_arguments& arguments, std::vector<segment_info>& segments) {
  if (arguments.all || arguments.prefix.find('~') != std::string::npos) {
    return 0;
  }
  return std::erase_if(segments,
                       [](const segment_info& each) { return !internal_text(each.name).empty(); });
}

std::string none_text(const list_arguments& arguments,
                      const broker_info& about,
                      std::size_t hidden) {
  return fmt::format(
      "no segments{} in domain \"{}\" at {}{}",
      arguments.prefix.empty() ? "" : fmt::format(" with prefix \"{}\"", arguments.prefix),
      about.domain,
      about.socket_path,
      hidden == 0 ? "" : fmt::format(" ({} internal, shown by --all)", hidden));
}

int list_exporters(const list_arguments& arguments) {
  client broker = connect(arguments.connection);
  const std::vector<registration> registrations = list_registrations(broker);
  const std::vector<exporter> exporters = exporters_of(registrations);
  const broker_info about = broker.broker();
  if (arguments.connection.json) {
    json document{{"domain", about.domain},
                  {"socket", about.socket_path},
                  {"exporters", json::array()},
                  {"registrations", json::array()}};
    for (const exporter& each : exporters) {
      document["exporters"].push_back(to_json(each));
    }
    for (const registration& each : registrations) {
      document["registrations"].push_back(to_json(each));
    }
    print_json(document);
  } else if (registrations.empty()) {
    note(fmt::format("nothing is registered by unchanged programs in domain \"{}\" at {}",
                     about.domain,
                     about.socket_path));
  } else {
    print(arguments.all ? registrations_text(registrations) : exporters_text(exporters));
    note(importers_unknown);
  }
  return exit_ok;
}

int run_list(const list_arguments& arguments) {
  if (arguments.by_principal) {
    return run_list_by_principal(arguments);
  }
  if (arguments.ipc) {
    return list_exporters(arguments);
  }
  client broker = connect(arguments.connection);
  std::vector<segment_info> segments = broker.list(arguments.prefix);
  const std::size_t hidden = hide_internal(arguments, segments);
  if (arguments.connection.json) {
    const broker_info about = broker.broker();
    json document{
        {"domain", about.domain}, {"socket", about.socket_path}, {"segments", json::array()}};
    for (const segment_info& info : segments) {
      document["segments"].push_back(to_json(info));
    }
    print_json(document);
  } else if (arguments.names_only) {
    for (const segment_info& info : segments) {
      print_line(info.name);
    }
  } else if (segments.empty()) {
    note(none_text(arguments, broker.broker(), hidden));
  } else {
    print(segments_text(segments));
  }
  return exit_ok;
}

}  // namespace

void add_list(command_list& commands) {
  add_command<list_arguments>(commands, "ls", "List segments", add_list_arguments, run_list);
}

}  // namespace gpushm::cli
