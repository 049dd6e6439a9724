// SPDX-License-Identifier: Apache-2.0
#include "cdi/generate.hpp"

#include "cdi/command.hpp"
#include "commands.hpp"
#include "output.hpp"
#include "support/child_process.hpp"

namespace gpushm::cli {

namespace {

std::string line_of(const std::vector<std::string>& parts) {
  std::string line;
  for (const std::string& part : parts) {
    line.append(line.empty() ? "" : "; ").append(part);
  }
  return line;
}

// How many names of a kind are told unless all are asked for.
constexpr std::size_t few = 3;

std::string missing_text(const discover::absent_things& missing, std::size_t most) {
  return std::string(missing.kind).append(" ").append(discover::list_text(missing.names, most));
}

void tell_missing(const std::vector<discover::absent_things>& missing, bool all) {
  std::vector<std::string> parts;
  for (const discover::absent_things& each : missing) {
    if (all) {
      note(std::string("not found: ").append(missing_text(each, each.names.size())));
    } else {
      parts.push_back(missing_text(each, few));
    }
  }
  if (!parts.empty()) {
    note(std::string("not found: ").append(line_of(parts)));
  }
}

void tell(const generated_document& made, const generate_arguments& arguments) {
  if (!arguments.quiet) {
    note(std::string("found ").append(line_of(made.found)));
    tell_missing(made.missing, arguments.verbose);
  }
  for (const std::string& warning : made.warnings) {
    note(std::string("warning: ").append(warning));
  }
}

}  // namespace

generated_document make_document(const generate_arguments& arguments) {
  discover::generate_options options = arguments.options;
  if (options.hook_path.empty()) {
    options.hook_path = app::executable_path();
  }
  discover::generated made = discover::generate(options);
  generated_document result{std::move(made.content),
                            std::move(made.found),
                            std::move(made.missing),
                            std::move(made.incomplete)};
  if (!arguments.spec_version.empty()) {
    for (std::string& dropped : cdi::lower_to(result.content, arguments.spec_version)) {
      result.warnings.push_back(std::move(dropped));
    }
  }
  return result;
}

namespace {

int run(const generate_arguments& arguments) {
  const generated_document made = make_document(arguments);
  write_document(made.content, arguments.output);
  tell(made, arguments);
  return exit_ok;
}

void add(CLI::App& app, generate_arguments& out) {
  add_document_output(app, out.output);
  add_generate_options(app, out);
  app.add_flag("-v,--verbose", out.verbose, "Name everything that was not found");
}

}  // namespace

void add_cdi_generate(CLI::App& cdi, request& asked) {
  add_cdi_command<generate_arguments>(cdi,
                                      asked,
                                      "generate",
                                      "Describe this machine's GPUs and driver as a CDI document",
                                      add,
                                      run);
}

}  // namespace gpushm::cli
