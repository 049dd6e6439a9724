// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gpushm::cdi {

/// An OCI runtime spec (config.json); keys keep their order, unknown ones stay as they are.
using oci_config = nlohmann::ordered_json;

/// Larger configs are refused.
inline constexpr std::size_t max_config_bytes = std::size_t{64} << 20U;
/// Deeper ones too: nothing real comes near, and reading and writing take stack for each level.
inline constexpr std::size_t max_config_depth = 256;

/// Reads a config such that writing it loses nothing: a key that comes twice, an integer of more
/// than 64 bits, text that is not UTF-8 and anything after the end are refused. `name` is what
/// errors call it. Throws `error` (invalid_argument). Pure.
[[nodiscard]] oci_config parse_config(std::string_view text, const std::string& name);

/// The contents of the file `path`, or of standard input when it is "-". Throws `error`
/// (permission_denied, system_error, invalid_argument: no regular file, too large). Blocks as long
/// as reading takes.
[[nodiscard]] std::string read_config_text(const std::string& path);

/// The config as text that is indented as `like` is, and ends with a line feed if that does.
[[nodiscard]] std::string to_text(const oci_config& config, std::string_view like);

/// Replaces the file `path` by rename, keeping its mode and owner; what a symbolic link leads to
/// when it is one. Throws `error`; the file is then as it was.
void replace_file(const std::string& path, std::string_view text);

}  // namespace gpushm::cdi
