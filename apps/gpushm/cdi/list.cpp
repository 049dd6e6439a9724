// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/problem_json.hpp"
#include "apps/gpushm/cdi/spec_directories.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "base/text/text_layout.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cli {

namespace {

struct cdi_list_arguments {
  std::vector<std::string> directories;
  bool json = false;
};

void add_list_arguments(CLI::App& app, cdi_list_arguments& out) {
  add_spec_directories(app, out.directories);
  add_json(app, out.json);
}

json device_json(const std::string& name, const cdi::registered_device& device) {
  return {{"name", name},
          {"kind", device.from->content.kind},
          {"device", device.found->name},
          {"version", device.from->content.version},
          {"file", device.from->path}};
}

void print_registered_devices(const cdi::registry& registry) {
  base::table table({{"DEVICE"}, {"VERSION"}, {"FILE"}});
  for (const auto& [name, device] : registry.devices()) {
    table.add({name, device.from->content.version, device.from->path});
  }
  print(table.text());
}

std::string joined(const std::vector<std::string>& directories) {
  std::string all;
  for (const std::string& each : directories) {
    all.append(all.empty() ? "" : ", ").append(each);
  }
  return all;
}

int run_list_command(const cdi_list_arguments& arguments) {
  const cdi::registry registry(spec_directories(arguments.directories));
  const auto problems = registry.problems();
  for (const yaml::problem& each : problems) {
    note(yaml::to_string(each));
  }
  if (arguments.json) {
    json document{{"devices", json::array()}, {"problems", to_json(problems)}};
    for (const auto& [name, device] : registry.devices()) {
      document["devices"].push_back(device_json(name, device));
    }
    print_json(document);
  } else if (registry.devices().empty()) {
    note("no devices in " + joined(registry.directories()));
  } else {
    print_registered_devices(registry);
  }
  return exit_ok;
}

}  // namespace

void add_cdi_list(command_list& commands) {
  add_command<cdi_list_arguments>(commands,
                                  "list",
                                  "List the CDI devices available to containers",
                                  add_list_arguments,
                                  run_list_command);
}

}  // namespace gpushm::cli
