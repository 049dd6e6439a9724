// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/parse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/text/quoted.hpp"
#include "containers/cdi/document/name.hpp"
#include "containers/cdi/document/parse_edits.hpp"
#include "containers/cdi/document/versions.hpp"
#include "containers/yaml/reader.hpp"
#include "containers/yaml/tree.hpp"

namespace gpushm::cdi {

namespace {

void read_notes(const parse_context& context, const yaml::reader::field& field, annotations& out) {
  for (const yaml::entry& each : context.in.entries(*field.value, "annotations")) {
    std::string text;
    if (context.in.read(*each.value, "an annotation", text)) {
      out[each.key] = std::move(text);
    }
  }
  if (!out.empty()) {
    context.since(*field.key, "0.6.0", "annotations");
  }
}

void read_device(const parse_context& context, const yaml::node& node, device& out) {
  constexpr std::array<std::string_view, 3> known{"name", "annotations", "containerEdits"};
  const std::size_t before = context.in.problem_count();
  const yaml::node* name_at = &node;
  bool readable = true;
  for (const auto& each : context.in.fields(node, "a device", known)) {
    if (each.index == 0) {
      name_at = each.value;
      readable = context.in.read(*each.value, "name", out.name);
    } else if (each.index == 1) {
      read_notes(context, each, out.notes);
    } else {
      read_edits(context, *each.value, out.changes);
    }
  }
  if (out.changes.empty() && context.in.problem_count() == before) {
    context.in.report(
        node, "empty-device", "containerEdits of a device must not be empty; add an edit");
  }
  if (!readable) {
    return;
  }
  if (const auto why = why_invalid_device(out.name)) {
    context.in.report(
        *name_at,
        "device-name",
        fmt::format("the name of a device cannot be {}: {}", base::in_quotes(out.name), *why));
  } else if (out.name.front() >= '0' && out.name.front() <= '9') {
    context.since(*name_at, "0.5.0", "a device name that begins with a digit");
  }
}

void read_devices(const parse_context& context, const yaml::node& node, std::vector<device>& out) {
  std::set<std::string> seen;
  for (const yaml::node* each : context.in.elements(node, "devices")) {
    if (!context.in.is_null(*each) && !context.in.entries_expected(*each, "a device")) {
      continue;
    }
    device& one = out.emplace_back();
    read_device(context, *each, one);
    if (!one.name.empty() && !seen.insert(one.name).second) {
      context.in.report(
          *each,
          "duplicate-device",
          fmt::format("two devices have the name {}; rename one", base::in_quotes(one.name)));
    }
  }
}

void judge_kind(const parse_context& context, const yaml::node& where, const std::string& kind) {
  const std::size_t slash = kind.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == kind.size()) {
    context.in.report(where, "kind", "kind must be \"vendor/class\", not " + base::in_quotes(kind));
    return;
  }
  const std::string vendor = kind.substr(0, slash);
  const std::string type = kind.substr(slash + 1);
  if (const auto why = why_invalid_vendor(vendor)) {
    context.in.report(
        where, "kind", fmt::format("the vendor cannot be {}: {}", base::in_quotes(vendor), *why));
  }
  if (const auto why = why_invalid_class(type)) {
    context.in.report(
        where, "kind", fmt::format("the class cannot be {}: {}", base::in_quotes(type), *why));
  } else if (type.find('.') != std::string::npos) {
    context.since(where, "0.6.0", "a dot in the class");
  }
}

/// Read first: the allowed fields depend on it.
void read_version(parse_context& context,
                  const yaml::node& where,
                  bool present,
                  std::string& version) {
  if (present && !context.in.read(where, "cdiVersion", version)) {
    return;
  }
  // Like the reference, strips one leading v.
  if (version.starts_with('v')) {
    version.erase(0, 1);
  }
  context.version = version_index(version);
  if (!context.version) {
    context.in.report(
        where,
        "version",
        fmt::format("{}; use one of {}",
                    version.empty() ? "cdiVersion is missing"
                                    : "unknown cdiVersion " + base::in_quotes(version),
                    fmt::join(known_versions, ", ")));
  }
}

void read_document(yaml::reader& reader,
                   yaml::reader& warnings,
                   const yaml::node& root,
                   document& out) {
  constexpr std::array<std::string_view, 5> known{
      "cdiVersion", "kind", "annotations", "devices", "containerEdits"};
  if (yaml::followed(root).is != yaml::node::shape::mapping) {
    reader.report(
        root, "type", "a CDI document must be a mapping with cdiVersion, kind and devices");
    return;
  }
  const auto fields = reader.fields(root, "a CDI document", known);
  const auto find = [&fields](std::size_t index) {
    return std::find_if(
        fields.begin(), fields.end(), [index](const auto& each) { return each.index == index; });
  };
  const auto place = [&](std::size_t index) -> const yaml::node& {
    return find(index) == fields.end() ? root : *find(index)->value;
  };
  parse_context context{reader, warnings, std::nullopt};
  read_version(context, place(0), find(0) != fields.end(), out.version);
  if (find(1) == fields.end() || reader.read(place(1), "kind", out.kind)) {
    judge_kind(context, place(1), out.kind);
  }
  for (const auto& each : fields) {
    if (each.index == 2) {
      read_notes(context, each, out.notes);
    } else if (each.index == 3) {
      read_devices(context, *each.value, out.devices);
    } else if (each.index == 4) {
      read_edits(context, *each.value, out.changes);
    }
  }
  const yaml::node& devices = place(3);
  // Otherwise a problem with its value was already reported.
  const bool list = &devices == &root || reader.is_null(devices) ||
                    (yaml::followed(devices).is == yaml::node::shape::sequence &&
                     yaml::followed(devices).children.empty());
  if (out.devices.empty() && list) {
    reader.report(devices, "no-devices", "a CDI document must have at least one device");
  }
}

}  // namespace

parsed parse(std::string_view text, const std::string& file) {
  parsed result;
  const auto add = [&file](std::vector<yaml::problem>& problems, yaml::failure failure) {
    problems.push_back(
        {file, failure.line, failure.column, std::move(failure.rule), std::move(failure.text)});
  };
  if (text.size() > max_document_bytes) {
    result.problems.push_back({file, 0, 0, "too-large", "it is larger than 4 MiB; shorten it"});
    return result;
  }
  yaml::tree tree;
  yaml::read_yaml(text, tree);
  if (tree.failure) {
    add(result.problems, *tree.failure);
    return result;
  }
  yaml::reader in(file, result.problems);
  if (tree.root == nullptr || in.is_null(*tree.root)) {
    result.problems.push_back({file, 0, 0, "empty", "it contains no CDI document"});
    return result;
  }
  yaml::reader warnings(file, result.warnings);
  read_document(in, warnings, *tree.root, result.content);
  std::stable_sort(result.problems.begin(),
                   result.problems.end(),
                   [](const yaml::problem& a, const yaml::problem& b) {
                     return std::pair(a.line, a.column) < std::pair(b.line, b.column);
                   });
  if (tree.rest) {
    tree.rest->rule = "ignored-rest";
    tree.rest->text = "engines ignore everything from here on; move it to a separate file";
    add(result.warnings, *tree.rest);
  }
  return result;
}

}  // namespace gpushm::cdi
