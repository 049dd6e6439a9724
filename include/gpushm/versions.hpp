// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/versions.h"

namespace gpushm {
inline namespace v1 {

/// As `gpushm_version_options`.
struct version_options {
  std::uint64_t number = 0;
  std::vector<std::string> parts = {};
  std::uint32_t keep_versions = 1;
  std::uint64_t keep_bytes = 0;
};

/// As `gpushm_version_info`.
struct version_info {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::uint32_t held = 0;
  version_state state = version_state::building;
  bool withdrawn = false;
  std::string aliases;  ///< separated by commas
};

/// Begins the next version of `name`, and returns its number. As `gpushm_client_create_version`.
inline std::uint64_t create_version(client& client,
                                    std::string_view name,
                                    const version_options& options = {}) {
  std::vector<gpushm_string> parts;
  parts.reserve(options.parts.size());
  for (const std::string& each : options.parts) {
    parts.push_back(glue::text(each));
  }
  auto wanted = glue::sized<gpushm_version_options>();
  wanted.number = options.number;
  wanted.parts = parts.data();
  wanted.part_count = parts.size();
  wanted.keep_versions = options.keep_versions;
  wanted.has_keep_versions = true;
  wanted.keep_bytes = options.keep_bytes;
  std::uint64_t number = 0;
  glue::check(gpushm_client_create_version(client.handle(), glue::text(name), &wanted, &number));
  return number;
}

/// As `gpushm_client_withdraw_version`.
inline void withdraw_version(client& client, std::string_view name, std::uint64_t number) {
  glue::check(gpushm_client_withdraw_version(client.handle(), glue::text(name), number));
}

/// As `gpushm_client_move_alias`.
inline void move_alias(client& client,
                       std::string_view name,
                       std::string_view alias,
                       std::uint64_t number) {
  glue::check(
      gpushm_client_move_alias(client.handle(), glue::text(name), glue::text(alias), number));
}

/// As `gpushm_client_remove_alias`.
inline void remove_alias(client& client, std::string_view name, std::string_view alias) {
  glue::check(gpushm_client_remove_alias(client.handle(), glue::text(name), glue::text(alias)));
}

/// The number of the version that `name` refers to. As `gpushm_client_resolve_version`.
[[nodiscard]] inline std::uint64_t resolve_version(client& client, std::string_view name) {
  std::uint64_t number = 0;
  glue::check(gpushm_client_resolve_version(client.handle(), glue::text(name), &number));
  return number;
}

/// The versions of a name, the highest number first. As `gpushm_client_list_versions`.
[[nodiscard]] inline std::vector<version_info> list_versions(client& client,
                                                             std::string_view name) {
  gpushm_version_list* list = nullptr;
  glue::check(gpushm_client_list_versions(client.handle(), glue::text(name), &list));
  const std::unique_ptr<gpushm_version_list, glue::deleter<&gpushm_version_list_free>> owned(list);
  std::vector<version_info> result;
  for (std::size_t i = 0; i != gpushm_version_list_size(list); ++i) {
    auto got = glue::sized<gpushm_version_info>();
    glue::check(gpushm_version_list_get(list, i, &got));
    result.push_back({got.number,
                      got.bytes,
                      got.held,
                      static_cast<version_state>(got.state),
                      got.withdrawn,
                      std::string(glue::view(got.aliases))});
  }
  return result;
}

}  // namespace v1
}  // namespace gpushm
