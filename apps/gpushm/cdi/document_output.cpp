// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/document_output.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <set>

#include "apps/gpushm/output.hpp"
#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/registry/spec_directory.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

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
    if (!cdi::is_document_name(each->path().native()) ||
        each->path().filename() == own.filename()) {
      continue;
    }
    const cdi::parsed other = cdi::load(each->path().string());
    // Invalid documents define no devices.
    if (!other.problems.empty() || other.content.kind != content.kind) {
      continue;
    }
    for (const cdi::device& device : other.content.devices) {
      if (names.contains(device.name)) {
        throw error(
            errc::already_exists,
            "write CDI document",
            output,
            fmt::format(
                "{} also defines {}={}, and engines ignore a device that two documents in one "
                "directory define",
                each->path().string(),
                content.kind,
                device.name),
            "remove that file, or choose another --vendor, --class or --output");
      }
    }
  }
}

cdi::format format_of(const document_output& output) {
  const bool json = fs::path(output.path).extension() == ".json";
  return output.format.value_or(json ? cdi::format::json : cdi::format::yaml);
}

}  // namespace

void add_document_format(CLI::App& app, document_output& out) {
  app.add_option_function<std::string>(
         "--format",
         [&out](const std::string& text) {
           if (text != "yaml" && text != "json") {
             throw CLI::ValidationError(
                 "--format", fmt::format("\"{}\" is not valid: it must be yaml or json", text));
           }
           out.format = text == "json" ? cdi::format::json : cdi::format::yaml;
         },
         "yaml or json (default: from the output's extension, else yaml)")
      ->type_name("FORMAT");
}

void add_document_output(CLI::App& app, document_output& out) {
  app.add_option("-o,--output", out.path, "Output file (default: standard output)")
      ->type_name("FILE");
  add_document_format(app, out);
}

void write_document(const cdi::document& content, const document_output& output) {
  if (output.path.empty()) {
    print(cdi::to_text(content, format_of(output)));
    return;
  }
  check_no_conflict(content, output.path);
  cdi::write_file(content, output.path, format_of(output));
  if (!cdi::is_document_name(output.path)) {
    note("warning: container engines read only files that end in .json or .yaml, not " +
         output.path);
  }
}

}  // namespace gpushm::cli
