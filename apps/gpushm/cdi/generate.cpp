// SPDX-License-Identifier: Apache-2.0
#include "cdi/generate.hpp"

#include <filesystem>
#include <set>

#include "cdi/command.hpp"
#include "commands.hpp"
#include "gpushm/error.hpp"
#include "output.hpp"
#include "spec/parse.hpp"
#include "support/child_process.hpp"

namespace gpushm::cli {

namespace fs = std::filesystem;

namespace {

bool is_document(const fs::path& path) {
  return path.extension() == ".json" || path.extension() == ".yaml";
}

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

void check_no_conflict(const cdi::document& content, const std::string& output) {
  const fs::path own(output);
  const fs::path directory = own.has_parent_path() ? own.parent_path() : fs::path(".");
  std::set<std::string, std::less<>> names;
  for (const cdi::device& device : content.devices) {
    names.insert(device.name);
  }
  std::error_code failed;
  for (fs::directory_iterator each(directory, failed); !failed && each != fs::directory_iterator();
       each.increment(failed)) {
    if (!is_document(each->path()) || each->path().filename() == own.filename()) {
      continue;
    }
    const cdi::parsed other = cdi::load(each->path().string());
    // What cannot be used defines nothing.
    if (!other.problems.empty() || other.content.kind != content.kind) {
      continue;
    }
    for (const cdi::device& device : other.content.devices) {
      if (names.contains(device.name)) {
        throw error(errc::already_exists,
                    "write CDI document",
                    output,
                    std::string(each->path().string())
                        .append(" defines ")
                        .append(content.kind)
                        .append("=")
                        .append(device.name)
                        .append(" too, and of two documents in one directory neither would count"),
                    "remove that file, or choose another --vendor, --class or --output");
      }
    }
  }
}

cdi::format format_of(const generate_arguments& arguments) {
  const bool json = fs::path(arguments.output).extension() == ".json";
  return arguments.format.value_or(json ? cdi::format::json : cdi::format::yaml);
}

namespace {

int run(const generate_arguments& arguments) {
  const generated_document made = make_document(arguments);
  const cdi::format format = format_of(arguments);
  if (arguments.output.empty()) {
    tell(made, arguments);
    print(cdi::to_text(made.content, format));
    return exit_ok;
  }
  check_no_conflict(made.content, arguments.output);
  cdi::write_file(made.content, arguments.output, format);
  tell(made, arguments);
  if (!is_document(arguments.output)) {
    note(std::string("warning: container engines read only files that end in .json or .yaml, not ")
             .append(arguments.output));
  }
  return exit_ok;
}

void add(CLI::App& app, generate_arguments& out) {
  app.add_option("-o,--output", out.output, "Where to write (default: standard output)")
      ->type_name("FILE");
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
