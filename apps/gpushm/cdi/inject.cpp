// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/inject/inject.hpp"

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/spec_directories.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

namespace {

struct inject_arguments {
  std::vector<std::string> devices;
  std::string spec;
  std::vector<std::string> directories;  ///< empty: the defaults
  bool in_place = false;
  bool verbose = false;
  bool json = false;
};

void add_inject_arguments(CLI::App& app, inject_arguments& out) {
  app.add_option("DEVICE", out.devices, "Qualified names, such as nvidia.com/gpu=0")
      ->required()
      ->type_name("");
  app.add_option("--spec", out.spec, "The OCI runtime spec (config.json); - is standard input")
      ->required()
      ->type_name("FILE");
  app.add_flag("--in-place", out.in_place, "Replace FILE (default: print the result)");
  add_spec_directories(app, out.directories);
  app.add_flag("-v,--verbose", out.verbose, "Print each edit to standard error");
  add_json(app, out.json);
}

json to_json(const std::vector<cdi::applied_edit>& done) {
  json list = json::array();
  for (const cdi::applied_edit& each : done) {
    list.push_back({{"device", each.device}, {"edit", each.text}});
  }
  return list;
}

std::vector<cdi::applied_edit> edit(const inject_arguments& arguments, cdi::oci_config& config) {
  const cdi::registry registry(spec_directories(arguments.directories));
  try {
    return cdi::inject(registry, arguments.devices, config);
  } catch (const error& failure) {
    // An error about the config itself; other errors name a device.
    throw failure.object().empty() ? failure.in(failure.operation(), arguments.spec) : failure;
  }
}

int run_inject_command(const inject_arguments& arguments) {
  if (arguments.in_place && arguments.spec == "-") {
    throw usage_error(errc::invalid_argument,
                      "inject",
                      {},
                      "standard input cannot be replaced",
                      "give a file, or omit --in-place");
  }
  const std::string text = cdi::read_config_text(arguments.spec);
  cdi::oci_config config = cdi::parse_config(text, arguments.spec);
  const auto done = edit(arguments, config);
  if (arguments.in_place) {
    cdi::replace_file(arguments.spec, cdi::to_text(config, text));
  }
  if (arguments.verbose) {
    for (const cdi::applied_edit& each : done) {
      note(each.device + ": " + each.text);
    }
  }
  if (arguments.json) {
    json document{{"spec", arguments.spec}, {"edits", to_json(done)}};
    if (!arguments.in_place) {
      document["config"] = std::move(config);
    }
    print_json(document);
  } else if (!arguments.in_place) {
    print(cdi::to_text(config, text));
  }
  return exit_ok;
}

}  // namespace

void add_cdi_inject(command_list& commands) {
  add_command<inject_arguments>(commands,
                                "inject",
                                "Add CDI devices to an OCI runtime spec",
                                add_inject_arguments,
                                run_inject_command);
}

}  // namespace gpushm::cli
