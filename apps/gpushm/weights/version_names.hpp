// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/segments/versioned_names.hpp"
#include "gpushm/types.hpp"
#include "gpushm/versions.hpp"

// Names of versions and aliases as arguments and in output.

namespace gpushm::cli {

/// Parses NAME@NUMBER or NAME@ALIAS, with a part if there is one. Views into `text`. Throws
/// `usage_error`; `operation` is named in it.
[[nodiscard]] base::versioned_name parse_version_argument(std::string_view operation,
                                                          std::string_view text);
/// Throws `usage_error` unless `name` is a name without "@".
void check_base_argument(std::string_view operation, const std::string& name);
/// Throws `usage_error` unless `alias` can be the name of an alias.
void check_alias_argument(std::string_view operation, const std::string& alias);

/// "w/x@7"
[[nodiscard]] std::string version_text(std::string_view name, std::uint64_t number);
/// "w/x@prod"
[[nodiscard]] std::string alias_text(std::string_view name, std::string_view alias);
/// The aliases that refer to a version.
[[nodiscard]] std::vector<std::string> aliases_of(const version_info& version);
/// The number of the version that `alias` refers to; 0: no such alias.
[[nodiscard]] std::uint64_t target_of(const std::vector<version_info>& versions,
                                      std::string_view alias);

/// The names that have versions, from the names of their segments, in their order.
[[nodiscard]] std::vector<std::string> bases_of(const std::vector<segment_info>& segments);

/// Throws no_such_segment for a name without versions, with the nearest of the names that have
/// some.
[[noreturn]] void throw_no_versions(client& broker,
                                    std::string_view operation,
                                    const std::string& name);

}  // namespace gpushm::cli
