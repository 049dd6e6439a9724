// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/weights/commands.hpp"
#include "apps/gpushm/weights/version_names.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/client.hpp"
#include "gpushm/versions.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* list_operation = "list versions";

struct weights_list_arguments {
  connection_arguments connection;
  std::string name;
};

void add_weights_list_arguments(CLI::App& app, weights_list_arguments& arguments) {
  app.add_option("NAME",
                 arguments.name,
                 "List the versions of this name (default: all names that have any)")
      ->type_name("");
  add_connection(app, arguments.connection);
}

/// A name that has versions.
struct versioned_base {
  std::string name;
  std::vector<version_info> versions;

  /// The highest number that is published; 0: none.
  [[nodiscard]] std::uint64_t newest() const {
    const auto first = std::find_if(versions.begin(), versions.end(), [](const version_info& each) {
      return each.state == version_state::published;
    });
    return first == versions.end() ? 0 : first->number;
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const version_info& each : versions) {
      sum += each.bytes;
    }
    return sum;
  }
};

std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const std::string& each : texts) {
    result += (result.empty() ? "" : ", ") + each;
  }
  return result.empty() ? "-" : result;
}

// ---- the versions of one name ----

json version_json(const version_info& version) {
  return {{"number", version.number},
          {"state", to_string(version.state)},
          {"withdrawn", version.withdrawn},
          {"aliases", aliases_of(version)},
          {"bytes", version.bytes},
          {"held", version.held}};
}

int list_versions_of(client& broker, const weights_list_arguments& arguments) {
  check_base_argument(list_operation, arguments.name);
  const std::vector<version_info> versions = list_versions(broker, arguments.name);
  if (versions.empty()) {
    throw_no_versions(broker, list_operation, arguments.name);
  }
  if (arguments.connection.json) {
    const broker_info about = broker.broker();
    json list = json::array();
    for (const version_info& each : versions) {
      list.push_back(version_json(each));
    }
    print_json(json{{"domain", about.domain},
                    {"socket", about.socket_path},
                    {"name", arguments.name},
                    {"versions", std::move(list)}});
    return exit_ok;
  }
  using align = base::table::align;
  base::table table({{"VERSION", align::right},
                     {"STATE"},
                     {"SIZE", align::right},
                     {"HELD", align::right},
                     {"ALIASES"}});
  for (const version_info& each : versions) {
    table.add({std::to_string(each.number),
               std::string(to_string(each.state)) + (each.withdrawn ? ", withdrawn" : ""),
               base::size_text(each.bytes),
               std::to_string(each.held),
               joined(aliases_of(each))});
  }
  print(table.text());
  return exit_ok;
}

// ---- all names ----

std::vector<versioned_base> all_bases(client& broker) {
  std::vector<versioned_base> result;
  for (std::string& name : bases_of(broker.list())) {
    std::vector<version_info> versions = list_versions(broker, name);
    if (!versions.empty()) {  // otherwise they have ended meanwhile
      result.push_back({std::move(name), std::move(versions)});
    }
  }
  return result;
}

json base_json(const versioned_base& base) {
  json aliases = json::object();
  for (const version_info& each : base.versions) {
    for (const std::string& alias : aliases_of(each)) {
      aliases[alias] = each.number;
    }
  }
  const std::uint64_t newest = base.newest();
  return {{"name", base.name},
          {"newest", newest == 0 ? json(nullptr) : json(newest)},
          {"versions", base.versions.size()},
          {"bytes", base.bytes()},
          {"aliases", std::move(aliases)}};
}

std::string alias_targets(const versioned_base& base) {
  std::vector<std::string> texts;
  for (const version_info& each : base.versions) {
    for (const std::string& alias : aliases_of(each)) {
      texts.push_back(fmt::format("{}={}", alias, each.number));
    }
  }
  return joined(texts);
}

int list_names(client& broker, bool as_json) {
  const std::vector<versioned_base> bases = all_bases(broker);
  const broker_info about = broker.broker();
  if (as_json) {
    json list = json::array();
    for (const versioned_base& each : bases) {
      list.push_back(base_json(each));
    }
    print_json(
        json{{"domain", about.domain}, {"socket", about.socket_path}, {"names", std::move(list)}});
    return exit_ok;
  }
  if (bases.empty()) {
    note(fmt::format(
        "no name has a published version in domain \"{}\" at {}", about.domain, about.socket_path));
    return exit_ok;
  }
  using align = base::table::align;
  base::table table({{"NAME"},
                     {"NEWEST", align::right},
                     {"VERSIONS", align::right},
                     {"SIZE", align::right},
                     {"ALIASES"}});
  for (const versioned_base& each : bases) {
    table.add({each.name,
               each.newest() == 0 ? "-" : std::to_string(each.newest()),
               std::to_string(each.versions.size()),
               base::size_text(each.bytes()),
               alias_targets(each)});
  }
  print(table.text());
  return exit_ok;
}

int run_weights_list(const weights_list_arguments& arguments) {
  client broker = connect(arguments.connection);
  return arguments.name.empty() ? list_names(broker, arguments.connection.json)
                                : list_versions_of(broker, arguments);
}

}  // namespace

void add_weights_list(command_list& commands) {
  add_command<weights_list_arguments>(commands,
                                      "ls",
                                      "List the versions of a name, or the names that have "
                                      "versions",
                                      add_weights_list_arguments,
                                      run_weights_list);
}

}  // namespace gpushm::cli
