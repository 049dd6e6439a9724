// SPDX-License-Identifier: Apache-2.0
// Versions of names (gpushm/versions.h).
#include <gpushm/versions.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client.hpp"

namespace gpushm_python {
namespace {

using std::string;

std::uint64_t create_version(client_object& self,
                             const string& name,
                             const std::vector<string>& parts,
                             std::optional<std::uint64_t> number,
                             std::uint32_t keep,
                             std::optional<std::uint64_t> keep_bytes) {
  std::vector<gpushm_string> texts;
  texts.reserve(parts.size());
  for (const string& each : parts) {
    texts.push_back(text(each));
  }
  auto options = with_size<gpushm_version_options>();
  options.number = number.value_or(0);
  options.parts = texts.data();
  options.part_count = texts.size();
  options.keep_versions = keep;
  options.has_keep_versions = true;
  options.keep_bytes = keep_bytes.value_or(0);
  std::uint64_t made = 0;
  call(self.handle.get("create_version"), [&](gpushm_client* client) {
    return gpushm_client_create_version(client, text(name), &options, &made);
  });
  return made;
}

void withdraw_version(client_object& self, const string& name, std::uint64_t number) {
  call(self.handle.get("withdraw_version"), [&](gpushm_client* client) {
    return gpushm_client_withdraw_version(client, text(name), number);
  });
}

void move_alias(client_object& self,
                const string& name,
                const string& alias,
                std::uint64_t number) {
  call(self.handle.get("move_alias"), [&](gpushm_client* client) {
    return gpushm_client_move_alias(client, text(name), text(alias), number);
  });
}

void remove_alias(client_object& self, const string& name, const string& alias) {
  call(self.handle.get("remove_alias"), [&](gpushm_client* client) {
    return gpushm_client_remove_alias(client, text(name), text(alias));
  });
}

std::uint64_t resolve_version(client_object& self, const string& name) {
  std::uint64_t number = 0;
  call(self.handle.get("resolve_version"), [&](gpushm_client* client) {
    return gpushm_client_resolve_version(client, text(name), &number);
  });
  return number;
}

nb::list versions(client_object& self, const string& name) {
  gpushm_version_list* raw = nullptr;
  call(self.handle.get("versions"), [&](gpushm_client* client) {
    return gpushm_client_list_versions(client, text(name), &raw);
  });
  const std::unique_ptr<gpushm_version_list, decltype(&gpushm_version_list_free)> owner(
      raw, gpushm_version_list_free);
  nb::list result;
  for (std::size_t i = 0; i < gpushm_version_list_size(raw); ++i) {
    auto info = with_size<gpushm_version_info>();
    failure::of(gpushm_version_list_get(raw, i, &info)).raise_if_any();
    const gpushm_string state = gpushm_version_state_name(info.state);
    nb::list aliases;
    if (info.aliases.size != 0) {
      aliases = nb::list(nb::str(info.aliases.data, info.aliases.size).attr("split")(","));
    }
    nb::dict fields;
    fields["number"] = info.number;
    fields["state"] = nb::str(state.data, state.size);
    fields["aliases"] = nb::tuple(aliases);
    fields["bytes"] = info.bytes;
    fields["held"] = info.held;
    fields["withdrawn"] = info.withdrawn;
    result.append(nb::module_::import_("gpushm._types").attr("VersionInfo")(**fields));
  }
  return result;
}

}  // namespace

void register_version_methods(nb::class_<client_object>& type) {
  type.def(
          "create_version",
          create_version,
          nb::arg("name"),
          nb::arg("parts") = std::vector<string>(),
          nb::kw_only(),
          nb::arg("number").none() = nb::none(),
          nb::arg("keep") = 1,
          nb::arg("keep_bytes").none() = nb::none(),
          nb::sig("def create_version(self, name: str, parts: Sequence[str] = (), *, number: int | "
                  "None = None, keep: int = 1, keep_bytes: int | None = None) -> int"),
          "Begin the next version of a name, and return its number.\n\n"
          "Create and publish its parts by their names, ``f\"{name}@{number}/{part}\"``, or, if "
          "``parts`` is\n"
          "empty, ``f\"{name}@{number}\"``; other processes of this user in this container can do "
          "so, too.\n"
          "Nobody else sees any part before the last one is published. That publishes the "
          "version, and\n"
          "``name@latest`` refers to it. If this process, or one that has created a part, ends "
          "before, all of\n"
          "it is removed.\n\n"
          "``number``: higher than those of all versions of the name so far; ``None``: the next "
          "one.\n"
          "``keep``, ``keep_bytes``: how many published versions of the name stay, and how many "
          "bytes of them\n"
          "(``None``: no limit), although no process has them open and no alias refers to them.\n\n"
          "Raises gpushm.InvalidArgumentError, AlreadyExistsError (a segment has the bare name),\n"
          "PermissionDeniedError (another user's versions), ShareExceededError,\n"
          "UnsupportedVersionError (an older broker).")
      .def("withdraw_version",
           withdraw_version,
           nb::arg("name"),
           nb::arg("number"),
           "Let ``name@latest`` refer to the newest other version.\n\n"
           "Raises gpushm.NoSuchSegmentError, PermissionDeniedError.")
      .def("move_alias",
           move_alias,
           nb::arg("name"),
           nb::arg("alias"),
           nb::arg("number"),
           "Let ``name@alias`` refer to a published version, for all who open it from then on.\n\n"
           "Creates the alias if there is none: a lower-case letter and up to 31 lower-case "
           "letters, digits and\n"
           "hyphens, not \"latest\". Raises gpushm.NoSuchSegmentError, InvalidArgumentError (not "
           "published),\n"
           "PermissionDeniedError, ShareExceededError.")
      .def("remove_alias",
           remove_alias,
           nb::arg("name"),
           nb::arg("alias"),
           "Raises gpushm.NoSuchSegmentError, InvalidArgumentError (\"latest\"), "
           "PermissionDeniedError.")
      .def("resolve_version",
           resolve_version,
           nb::arg("name"),
           "The number of the published version that a name refers to.\n\n"
           "``name``: ``name@alias``, ``name@number``, or ``name``, which means ``name@latest``. "
           "Processes that\n"
           "open parts of one version resolve it once, and open ``f\"{name}@{number}/{part}\"``.\n"
           "Raises gpushm.NoSuchSegmentError, which says which ones exist.")
      .def("versions",
           versions,
           nb::arg("name"),
           nb::sig("def versions(self, name: str) -> list[VersionInfo]"),
           "The versions of a name, the newest first; empty if there are none.");
}

}  // namespace gpushm_python
