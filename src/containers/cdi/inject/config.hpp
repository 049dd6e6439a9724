// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gpushm::cdi {

/// An OCI runtime spec (config.json); keys keep their order, unknown ones are preserved.
using oci_config = nlohmann::ordered_json;

/// Larger configs are rejected.
inline constexpr std::size_t max_config_bytes = std::size_t{64} << 20U;
/// Deeper configs are rejected: reading and writing use stack for each level. Real configs are far
/// below it.
inline constexpr std::size_t max_config_depth = 256;

/// Reads a config without loss: rejects duplicate keys, integers of more than 64 bits, text that is
/// not UTF-8 and anything after the end. `name` names the config in errors. Throws `error`
/// (invalid_argument). Pure.
[[nodiscard]] oci_config parse_config(std::string_view text, const std::string& name);

/// The contents of the file `path`, or of standard input when it is "-". Throws `error`
/// (permission_denied, system_error, invalid_argument: not a regular file, too large). Blocks while
/// reading.
[[nodiscard]] std::string read_config_text(const std::string& path);

/// The config as text with the indentation of `like`, and a final line feed if `like` has one.
[[nodiscard]] std::string to_text(const oci_config& config, std::string_view like);

/// Replaces the file `path` by rename, keeping its mode and owner; replaces the target of a
/// symbolic link. Throws `error`; the file is then unchanged.
void replace_file(const std::string& path, std::string_view text);

}  // namespace gpushm::cdi
