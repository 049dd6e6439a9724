// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/problem_json.hpp"
#include "apps/gpushm/cdi/spec_directories.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/input_file.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "containers/cdi/document/host_check.hpp"
#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cli {

namespace {

struct validate_arguments {
  std::vector<std::string> files;
  std::vector<std::string> directories;
  bool json = false;
};

/// The documents checked, with their problems.
struct findings {
  std::vector<std::pair<std::string, cdi::document>> documents;  ///< valid ones, with their files
  std::size_t count = 0;                                         ///< all documents, valid or not
  std::vector<yaml::problem> problems;
  std::vector<yaml::problem> warnings;
};

void append(std::vector<yaml::problem>& target, const std::vector<yaml::problem>& more) {
  target.insert(target.end(), more.begin(), more.end());
}

void take(findings& findings,
          const std::string& file,
          const cdi::document& content,
          bool valid,
          const std::vector<yaml::problem>& warnings) {
  ++findings.count;
  append(findings.warnings, warnings);
  if (valid) {
    findings.documents.emplace_back(file, content);
    append(findings.warnings, cdi::check_on_host(content, file));
  }
}

findings check_files(const std::vector<std::string>& files) {
  findings findings;
  for (const std::string& file : files) {
    const cdi::parsed read = file == "-"
                                 ? cdi::parse(read_standard_input(cdi::max_document_bytes), "-")
                                 : cdi::load(file);
    take(findings, file, read.content, read.problems.empty(), read.warnings);
    append(findings.problems, read.problems);
  }
  return findings;
}

findings check_registry(const std::vector<std::string>& directories) {
  findings findings;
  const cdi::registry registry(directories);
  findings.problems = registry.problems();
  for (const auto& each : registry.sources()) {
    take(findings, each->path, each->content, each->problems.empty(), each->warnings);
  }
  return findings;
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_text(const findings& findings) {
  for (const yaml::problem& each : findings.problems) {
    print_line(yaml::to_string(each));
  }
  for (yaml::problem each : findings.warnings) {
    each.text.insert(0, "warning: ");
    print_line(yaml::to_string(each));
  }
  print_line(fmt::format("{}: {}, {}",
                         counted(findings.count, "document"),
                         counted(findings.problems.size(), "problem"),
                         counted(findings.warnings.size(), "warning")));
}

void print_as_json(const findings& findings) {
  json documents = json::array();
  for (const auto& [file, content] : findings.documents) {
    json devices = json::array();
    for (const cdi::device& each : content.devices) {
      devices.push_back(each.name);
    }
    documents.push_back({{"file", file},
                         {"version", content.version},
                         {"kind", content.kind},
                         {"devices", std::move(devices)}});
  }
  print_json({{"documents", std::move(documents)},
              {"problems", to_json(findings.problems)},
              {"warnings", to_json(findings.warnings)}});
}

void add_validate_arguments(CLI::App& app, validate_arguments& out) {
  auto* files = app.add_option("FILE",
                               out.files,
                               "Documents; - is standard input (default: all in the directories, "
                               "including conflicts between them)")
                    ->type_name("");
  add_spec_directories(app, out.directories)->excludes(files);
  add_json(app, out.json);
}

int run_validate_command(const validate_arguments& arguments) {
  const findings findings = arguments.files.empty()
                                ? check_registry(spec_directories(arguments.directories))
                                : check_files(arguments.files);
  if (arguments.json) {
    print_as_json(findings);
  } else {
    print_text(findings);
  }
  return findings.problems.empty() ? exit_ok : exit_failed;
}

}  // namespace

void add_cdi_validate(command_list& commands) {
  add_command<validate_arguments>(commands,
                                  "validate",
                                  "Report every problem of CDI documents",
                                  add_validate_arguments,
                                  run_validate_command);
}

}  // namespace gpushm::cli
