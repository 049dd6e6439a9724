// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm::cli {

using fields = std::vector<std::pair<std::string, std::string>>;

/// 32 hexadecimal digits.
[[nodiscard]] std::string epoch_text(const epoch& value);
/// "host", or "GPU-… (0000:18:00.0, /dev/nvidia0)".
[[nodiscard]] std::string device_text(const device_id& device);
/// The human-readable properties of a mapped segment.
[[nodiscard]] fields segment_fields(const segment& mapped);
/// Whether the kernel keeps this process, and others of its uid and capabilities, from writing the
/// words of another process: "enforced", or "advisory (…)".
[[nodiscard]] std::string writer_text(bool is_writable);
/// What an internal segment of the library is for; empty if the name is a user's.
[[nodiscard]] std::string internal_text(std::string_view name);
/// Throws `usage_error` if `name` is one that the library gives to its own segments, which `ls`
/// does not list. `operation` is named in the error.
void check_is_own(const std::string& name, std::string_view operation);
/// The table of `ls`, one line per segment.
[[nodiscard]] std::string segments_text(const std::vector<segment_info>& segments);
/// The output of `stat`: the name, one line per property, and `more` lines.
[[nodiscard]] std::string segment_text(const segment_info& info, const fields& more = {});
/// True if the bytes are UTF-8 without C0 controls and DEL (tab and line feed are allowed). Such
/// text still has to be escaped for a terminal.
[[nodiscard]] bool is_text(std::span<const std::byte> bytes);
[[nodiscard]] std::string as_text(std::span<const std::byte> bytes);
/// RFC 4648, with padding.
[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

}  // namespace gpushm::cli
