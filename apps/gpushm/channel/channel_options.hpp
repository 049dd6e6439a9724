// SPDX-License-Identifier: Apache-2.0
#pragma once

// Options of several commands of `gpushm channel`. A malformed value is refused with the option's
// name.

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace gpushm::cli {

/// The description of `--device`, where memory is allocated.
inline constexpr const char* channel_devices =
    "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>";

/// The first argument of each command.
void add_channel_name(CLI::App& app, std::string& name);
/// `--count`.
void add_items(CLI::App& app, const std::string& description, std::optional<std::uint64_t>& count);

/// The value of `--slots`.
[[nodiscard]] std::uint32_t slots_in(const std::string& text);
/// Returns `bytes`, the value of `--slot-size`.
[[nodiscard]] std::uint64_t slot_size(std::uint64_t bytes);
/// A number from 1 to `most`.
[[nodiscard]] std::uint32_t up_to(const std::string& option,
                                  const std::string& text,
                                  std::uint32_t most);

}  // namespace gpushm::cli
