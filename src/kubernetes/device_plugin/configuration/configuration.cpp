// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/configuration/configuration.hpp"

#include <fmt/core.h>

#include "base/text/quoted.hpp"
#include "containers/yaml/tree.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/configuration/reader.hpp"

namespace gpushm::device_plugin {

namespace {

using node = configuration_reader::node;

void read_version(configuration_reader& in, const node& from, const std::string& path) {
  std::string version;
  if (in.read(from, path, version) && !version.empty() && version != "v1") {
    in.report(from,
              fmt::format("{} cannot be {}", path, base::in_quotes(version)),
              "write version: v1, the only supported version");
  }
}

void read_naming(configuration_reader& in,
                 const node& from,
                 const std::string& path,
                 std::vector<naming>& to) {
  naming out;
  bool has_pattern = false;
  bool has_name = false;
  const std::size_t before = in.problem_count();
  in.read_mapping(from,
                  path,
                  {{"pattern",
                    [&](const node& value, const std::string& at) {
                      has_pattern = in.read(value, at, out.pattern) && !out.pattern.empty();
                    }},
                   {"name", [&](const node& value, const std::string& at) {
                      has_name = in.read(value, at, out.name) && !out.name.empty();
                      if (!has_name) {
                        return;
                      }
                      out.name = whole_resource_name(out.name);
                      if (const auto why = resource_name_problem(out.name)) {
                        in.report(
                            value,
                            fmt::format("{} cannot be {}: {}", at, base::in_quotes(out.name), *why),
                            "write a name like nvidia.com/a100");
                      }
                    }}});
  if (in.problem_count() == before && !(has_pattern && has_name)) {
    in.report(from,
              path + (has_pattern ? " has no name" : " has no pattern"),
              "map devices to a name: {pattern: \"*A100*\", name: a100}");
  }
  to.push_back(std::move(out));
}

void read_resources(configuration_reader& in,
                    const node& from,
                    const std::string& path,
                    configuration& out) {
  const auto list_into = [&in](std::vector<naming>& to) {
    return [&in, &to](const node& value, const std::string& at) {
      in.read_list(value, at, [&](const node& each, const std::string& where) {
        read_naming(in, each, where, to);
      });
    };
  };
  in.read_mapping(
      from, path, {{"gpus", list_into(out.gpu_names)}, {"mig", list_into(out.mig_names)}});
}

void read_imex(configuration_reader& in,
               const node& from,
               const std::string& path,
               imex_channels& out) {
  in.read_mapping(
      from,
      path,
      {{"channelIDs",
        [&](const node& value, const std::string& at) {
          std::vector<std::int64_t> ids;
          if (!in.read(value, at, ids)) {
            return;
          }
          out.channel_zero = !ids.empty();
          if (ids.size() > 1 || (ids.size() == 1 && ids.front() != 0)) {
            in.report(value, at + " can only be [] or [0]", "leave out every other channel");
          }
        }},
       {"required",
        [&](const node& value, const std::string& at) { in.read(value, at, out.required); }}});
}

void read_file(configuration_reader& in, const node& root, configuration& out) {
  sharing_reader sharing(in, out);
  in.read_mapping(
      root,
      "",
      {{"version", [&](const node& value, const std::string& at) { read_version(in, value, at); }},
       {"flags",
        [&](const node& value, const std::string& at) { read_flags(in, value, at, out.flags); }},
       {"resources",
        [&](const node& value, const std::string& at) {
          if (configuration_reader::is_list(value)) {
            sharing.read_misplaced_resources(value, at);
          } else {
            read_resources(in, value, at, out);
          }
        }},
       {"sharing", [&](const node& value, const std::string& at) { sharing.read(value, at); }},
       {"imex",
        [&](const node& value, const std::string& at) { read_imex(in, value, at, out.imex); }},
       {"agent", {}}});
  sharing.finish();
}

}  // namespace

checked_configuration check_configuration(std::string_view text, const std::string& file) {
  checked_configuration out;
  yaml::tree tree;
  yaml::read_yaml(text, tree);
  if (tree.failure) {
    out.problems.push_back({tree.failure->line,
                            tree.failure->column,
                            tree.failure->text,
                            "correct the text at or just before this position"});
  }
  if (tree.rest) {
    out.problems.push_back({tree.rest->line,
                            tree.rest->column,
                            "a second document begins here; only the first is read",
                            "remove what follows ---"});
  }
  if (tree.root == nullptr || tree.failure) {
    return out;
  }
  configuration_reader in(file, out.content);
  read_file(in, *tree.root, out.content);
  for (configuration_problem& each : in.take_problems()) {
    out.problems.push_back(std::move(each));
  }
  return out;
}

configuration parse_configuration(std::string_view text, const std::string& file) {
  checked_configuration checked = check_configuration(text, file);
  if (checked.problems.empty()) {
    return std::move(checked.content);
  }
  const configuration_problem& first = checked.problems.front();
  std::string cause = first.text;
  if (checked.problems.size() > 1) {
    const std::size_t more = checked.problems.size() - 1;
    cause += fmt::format("; and {} more {}", more, more == 1 ? "problem" : "problems");
  }
  const std::string place =
      first.line > 0 ? fmt::format("{}:{}:{}", file, first.line, first.column) : file;
  throw error(errc::invalid_argument, "read configuration", place, cause, first.next_step);
}

}  // namespace gpushm::device_plugin
