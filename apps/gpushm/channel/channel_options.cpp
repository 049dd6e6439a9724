// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/channel_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/gpushm/options.hpp"
#include "gpushm/channel.h"

namespace gpushm::cli {

void add_channel_name(CLI::App& app, std::string& name) {
  app.add_option("NAME", name, "Name of the channel")->required()->type_name("");
}

std::uint32_t slots_in(const std::string& text) {
  constexpr const char* expected = "a number from 1 to 1024";
  static_assert(GPUSHM_MAX_CHANNEL_SLOTS == 1024);
  const auto value = parse_number<std::uint32_t>("--slots", text, 10, expected);
  if (value == 0 || value > GPUSHM_MAX_CHANNEL_SLOTS) {
    refuse("--slots", text, expected);
  }
  return value;
}

std::uint32_t up_to(const std::string& option, const std::string& text, std::uint32_t most) {
  const std::string expected = "a number from 1 to " + std::to_string(most);
  const auto value = parse_number<std::uint32_t>(option, text, 10, expected.c_str());
  if (value == 0 || value > most) {
    refuse(option, text, expected);
  }
  return value;
}

std::uint64_t slot_size(std::uint64_t bytes) {
  constexpr std::uint64_t most = std::uint64_t{1} << 46U;
  if (bytes == 0 || bytes > most) {
    refuse("--slot-size", std::to_string(bytes), "from 1 byte to 64 TiB");
  }
  return bytes;
}

void add_items(CLI::App& app, const std::string& description, std::optional<std::uint64_t>& count) {
  add_text(app, "--count", "N", description, [&count](const std::string& text) {
    constexpr const char* expected = "a number of items, from 1";
    count = parse_number<std::uint64_t>("--count", text, 10, expected);
    if (*count == 0) {
      refuse("--count", text, expected);
    }
  });
}

}  // namespace gpushm::cli
