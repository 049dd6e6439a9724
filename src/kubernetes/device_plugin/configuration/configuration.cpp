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

void read_version(configuration_reader& reader, const node& node, const std::string& path) {
  std::string version;
  if (reader.read(node, path, version) && !version.empty() && version != "v1") {
    reader.report(node,
                  fmt::format("{} cannot be {}", path, base::in_quotes(version)),
                  "write version: v1, the only supported version");
  }
}

void read_naming(configuration_reader& reader,
                 const node& source,
                 const std::string& path,
                 std::vector<naming>& namings) {
  naming out;
  bool has_pattern = false;
  bool has_name = false;
  const std::size_t before = reader.problem_count();
  reader.read_mapping(
      source,
      path,
      {{"pattern",
        [&](const node& value, const std::string& place) {
          has_pattern = reader.read(value, place, out.pattern) && !out.pattern.empty();
        }},
       {"name", [&](const node& value, const std::string& place) {
          has_name = reader.read(value, place, out.name) && !out.name.empty();
          if (!has_name) {
            return;
          }
          out.name = whole_resource_name(out.name);
          if (const auto why = resource_name_problem(out.name)) {
            reader.report(
                value,
                fmt::format("{} cannot be {}: {}", place, base::in_quotes(out.name), *why),
                "write a name like nvidia.com/a100");
          }
        }}});
  if (reader.problem_count() == before && !(has_pattern && has_name)) {
    reader.report(source,
                  path + (has_pattern ? " has no name" : " has no pattern"),
                  "map devices to a name: {pattern: \"*A100*\", name: a100}");
  }
  namings.push_back(std::move(out));
}

void read_resources(configuration_reader& reader,
                    const node& source,
                    const std::string& path,
                    configuration& out) {
  const auto list_into = [&reader](std::vector<naming>& namings) {
    return [&reader, &namings](const node& value, const std::string& place) {
      reader.read_list(value, place, [&](const node& each, const std::string& where) {
        read_naming(reader, each, where, namings);
      });
    };
  };
  reader.read_mapping(
      source, path, {{"gpus", list_into(out.gpu_names)}, {"mig", list_into(out.mig_names)}});
}

void read_imex(configuration_reader& reader,
               const node& source,
               const std::string& path,
               imex_channels& out) {
  reader.read_mapping(
      source,
      path,
      {{"channelIDs",
        [&](const node& value, const std::string& place) {
          std::vector<std::int64_t> ids;
          if (!reader.read(value, place, ids)) {
            return;
          }
          out.channel_zero = !ids.empty();
          if (ids.size() > 1 || (ids.size() == 1 && ids.front() != 0)) {
            reader.report(value, place + " can only be [] or [0]", "leave out every other channel");
          }
        }},
       {"required", [&](const node& value, const std::string& place) {
          reader.read(value, place, out.required);
        }}});
}

void read_file(configuration_reader& reader, const node& root, configuration& out) {
  sharing_reader sharing(reader, out);
  reader.read_mapping(
      root,
      "",
      {{"version",
        [&](const node& value, const std::string& path) { read_version(reader, value, path); }},
       {"flags",
        [&](const node& value, const std::string& path) {
          read_flags(reader, value, path, out.flags);
        }},
       {"resources",
        [&](const node& value, const std::string& path) {
          if (configuration_reader::is_list(value)) {
            sharing.read_misplaced_resources(value, path);
          } else {
            read_resources(reader, value, path, out);
          }
        }},
       {"sharing", [&](const node& value, const std::string& path) { sharing.read(value, path); }},
       {"imex",
        [&](const node& value, const std::string& path) {
          read_imex(reader, value, path, out.imex);
        }},
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
