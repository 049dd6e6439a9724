// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/generate.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "base/process/child_process.hpp"
#include "containers/discover/driver_files/trusted_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

std::string line_of(const std::vector<std::string>& parts) {
  std::string line;
  for (const std::string& part : parts) {
    line.append(line.empty() ? "" : "; ").append(part);
  }
  return line;
}

// Names listed per kind without --verbose.
constexpr std::size_t few = 3;

std::string missing_text(const discover::missing_items& missing, std::size_t most) {
  return fmt::format("{} {}", missing.kind, discover::list_text(missing.names, most));
}

void report_missing(const std::vector<discover::missing_items>& missing, bool verbose) {
  std::vector<std::string> parts;
  for (const discover::missing_items& each : missing) {
    if (verbose) {
      note("not found: " + missing_text(each, each.names.size()));
    } else {
      parts.push_back(missing_text(each, few));
    }
  }
  if (!parts.empty()) {
    note("not found: " + line_of(parts));
  }
}

void print_notes(const generated_document& document, const generate_arguments& arguments) {
  if (!arguments.quiet) {
    note("found " + line_of(document.found));
    report_missing(document.missing, arguments.verbose);
  }
  for (const std::string& warning : document.warnings) {
    note("warning: " + warning);
  }
}

// Engines run the hook program as root. Omits the hooks and returns a warning when the default
// program is unsafe, such as in a build tree or home directory. Rejects an unsafe program that the
// user chose.
std::string check_hook_program(discover::generate_options& options, bool chosen) {
  const auto problem = ::geteuid() == 0 && !options.disabled_hooks.contains("all")
                           ? discover::why_replaceable(options.hook_path)
                           : std::nullopt;
  if (!problem) {
    return {};
  }
  const std::string cause = "engines would run it as root, and " + *problem;
  constexpr const char* next = "install it where only root can write, such as /usr/local/bin";
  if (chosen) {
    throw error(errc::invalid_argument, "set the hook program", options.hook_path, cause, next);
  }
  options.disabled_hooks.insert("all");
  return fmt::format(
      "the document has no hooks: the hook program would be {}; {} ({}, or set another with "
      "--hook-path)",
      options.hook_path,
      cause,
      next);
}

}  // namespace

generated_document make_document(const generate_arguments& arguments) {
  discover::generate_options options = arguments.options;
  const bool chosen = !options.hook_path.empty();
  if (!chosen) {
    options.hook_path = base::executable_path();
  }
  const std::string without_hooks = check_hook_program(options, chosen);
  discover::generated discovered = discover::generate(options);
  generated_document result{std::move(discovered.content),
                            std::move(discovered.found),
                            std::move(discovered.missing),
                            std::move(discovered.incomplete),
                            std::move(discovered.missing_control_nodes)};
  if (!without_hooks.empty()) {
    result.warnings.push_back(without_hooks);
  }
  if (!arguments.spec_version.empty()) {
    for (std::string& dropped : cdi::lower_to(result.content, arguments.spec_version)) {
      result.warnings.push_back(std::move(dropped));
    }
  }
  return result;
}

void require_control_nodes(const std::vector<std::string>& missing) {
  if (!missing.empty()) {
    throw error(errc::driver_unavailable,
                "describe the GPUs",
                {},
                fmt::format("missing device {} {}: CUDA would not start in any container",
                            missing.size() == 1 ? "node" : "nodes",
                            discover::list_text(missing)),
                "load the modules and create the nodes with nvidia-modprobe -u -c=0, or accept a "
                "document without them with --incomplete");
  }
}

namespace {

int run_generate_command(const generate_arguments& arguments) {
  const generated_document document = make_document(arguments);
  if (!arguments.incomplete) {
    require_control_nodes(document.missing_control_nodes);
  }
  write_document(document.content, arguments.output);
  print_notes(document, arguments);
  return exit_ok;
}

void add_generate_arguments(CLI::App& app, generate_arguments& out) {
  add_document_output(app, out.output);
  add_generate_options(app, out);
  app.add_flag("-v,--verbose", out.verbose, "List everything that was not found");
}

}  // namespace

void add_cdi_generate(command_list& commands) {
  add_command<generate_arguments>(commands,
                                  "generate",
                                  "Describe this machine's GPUs and driver as a CDI document",
                                  add_generate_arguments,
                                  run_generate_command);
}

}  // namespace gpushm::cli
