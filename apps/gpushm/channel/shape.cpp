// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/shape.hpp"

#include <fmt/core.h>

#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "base/report/log.hpp"
#include "base/text/size_text.hpp"
#include "channel/layout.hpp"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

std::string shape_text(const channel_shape& shape) {
  return fmt::format("{} of {}", shape.slots, base::size_text(shape.slot_bytes));
}

std::uint64_t segment_bytes(const channel_shape& shape) {
  constexpr std::uint64_t unit = channel::slot_alignment;
  return shape.slots * ((shape.slot_bytes + unit - 1) / unit * unit);
}

std::string to_metadata(const channel_shape& shape) {
  return json{{"gpushm_channel", 1}, {"slots", shape.slots}, {"slot_bytes", shape.slot_bytes}}
      .dump();
}

std::optional<channel_shape> shape_in(std::span<const std::byte> metadata) {
  const json document = json::parse(as_text(metadata), nullptr, false);
  if (!document.is_object()) {
    return std::nullopt;
  }
  const auto number = [&](const char* key) {
    const auto found = document.find(key);
    return found != document.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  const std::uint64_t slots = number("slots");
  const std::uint64_t slot_bytes = number("slot_bytes");
  if (number("gpushm_channel") != 1 || slots == 0 || slots > channel::max_slots ||
      slot_bytes == 0) {
    return std::nullopt;
  }
  return channel_shape{static_cast<std::uint32_t>(slots), slot_bytes};
}

std::optional<channel_shape> known_shape(client& broker, const std::string& name) {
  try {
    const auto status = channel_status::read(broker, name);
    return channel_shape{status.slots, status.slot_bytes};
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
  }
  try {
    return shape_in(broker.open(name).metadata());
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
  }
  return std::nullopt;
}

}  // namespace gpushm::cli
