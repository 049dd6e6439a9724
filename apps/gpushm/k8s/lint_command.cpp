// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/input_file.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/k8s/lint.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

namespace {

constexpr std::size_t max_bytes = 4UL << 20U;

struct lint_arguments {
  std::vector<std::string> files;
  k8s::lint_options options;
  bool json = false;
};

void print_text(const std::vector<k8s::finding>& findings, const k8s::manifests& manifests) {
  for (const k8s::finding& each : findings) {
    print_line(fmt::format("{}:{}:{}: {}{}{} [{}]",
                           each.file,
                           each.line,
                           each.column,
                           each.object,
                           each.object.empty() ? "" : ": ",
                           each.why,
                           each.rule));
    for (const std::string& one : each.write) {
      print_line("    " + one);
    }
  }
  const auto counted = [](std::size_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
  };
  print_line(fmt::format("{}, {}: {}",
                         counted(manifests.objects(), "object"),
                         counted(manifests.workloads().size(), "workload"),
                         counted(findings.size(), "finding")));
}

void print_as_json(const std::vector<k8s::finding>& reported, const k8s::manifests& manifests) {
  json findings = json::array();
  for (const k8s::finding& each : reported) {
    findings.push_back({{"file", each.file},
                        {"line", each.line},
                        {"column", each.column},
                        {"rule", each.rule},
                        {"object", each.object},
                        {"why", each.why},
                        {"write", each.write}});
  }
  print_json({{"objects", manifests.objects()},
              {"workloads", manifests.workloads().size()},
              {"findings", std::move(findings)}});
}

/// An option that takes one value each time it is given.
void add_names(CLI::App& app,
               const char* option,
               const char* type,
               const char* description,
               std::set<std::string>& out) {
  app.add_option_function<std::vector<std::string>>(
         option,
         [&out](const std::vector<std::string>& names) { out.insert(names.begin(), names.end()); },
         description)
      ->type_name(type)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

void add(CLI::App& app, lint_arguments& out) {
  app.add_option("FILE", out.files, "Manifests, YAML or JSON; - is standard input")
      ->required()
      ->type_name("");
  app.add_flag("--one-gpu-nodes",
               out.options.one_gpu_nodes,
               "The nodes have one GPU each, so pods on one node get the same GPU");
  add_names(app,
            "--one-gpu-resource",
            "NAME",
            "A resource that is one GPU, such as time slices of a single GPU (may be repeated)",
            out.options.one_gpu_resources);
  app.add_flag("--per-gpu-resources",
               out.options.per_gpu_resources,
               "The agent offers each GPU as gpushm.dev/gpu-N (overlays full-per-gpu and "
               "no-dra-per-gpu)");
  add_names(
      app,
      "--ignore-kind",
      "KIND",
      "Do not report objects of this kind whose pods are not in the manifest (may be repeated)",
      out.options.ignored_kinds);
  add_json(app, out.json);
}

int run(const lint_arguments& arguments) {
  k8s::manifests manifests;
  for (const std::string& file : arguments.files) {
    const std::string text =
        read_input("read manifest", file, max_bytes, "split its documents into several files");
    manifests.add(text, file);
  }
  const auto findings = k8s::lint(manifests, arguments.options);
  if (arguments.json) {
    print_as_json(findings, manifests);
  } else {
    print_text(findings, manifests);
  }
  return findings.empty() ? exit_ok : exit_failed;
}

}  // namespace

void add_k8s(command_list& commands) {
  add_command_group(
      commands, "k8s", "Check manifests of pods that share GPU memory", [](command_list& below) {
        add_command<lint_arguments>(below,
                                    "lint",
                                    "Report what pods request but do not need to share GPU memory, "
                                    "and what they need but are not guaranteed",
                                    add,
                                    run);
      });
}

}  // namespace gpushm::cli
