// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/device_text.hpp"

#include <array>
#include <cstdio>

#include "base/text/hex.hpp"
#include "base/text/text.hpp"

namespace gpushm::driver {

namespace {

constexpr std::size_t min_uuid_characters = 8;

}  // namespace

gpu_information parse_gpu_information(std::string_view text) {
  gpu_information information;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) {
      continue;
    }
    const std::string_view key = base::trim(line.substr(0, colon));
    const std::string_view value = base::trim(line.substr(colon + 1));
    if (key == "Device Minor") {
      const auto minor = base::number<std::int32_t>(value, 10);
      information.minor = minor && *minor >= 0 ? *minor : -1;
    } else if (key == "GPU UUID" && value.find('?') == std::string_view::npos) {
      information.uuid = value;
    }
  }
  return information;
}

std::optional<std::string> normal_pci_address(std::string_view text) {
  const auto bus_at = text.find(':');
  const auto device_at = bus_at == std::string_view::npos ? bus_at : text.find(':', bus_at + 1);
  const auto function_at =
      device_at == std::string_view::npos ? device_at : text.find('.', device_at + 1);
  if (function_at == std::string_view::npos) {
    return std::nullopt;
  }
  const auto domain = base::number<std::uint32_t>(text.substr(0, bus_at), 16);
  const auto bus = base::number<std::uint8_t>(text.substr(bus_at + 1, device_at - bus_at - 1), 16);
  const auto device =
      base::number<std::uint8_t>(text.substr(device_at + 1, function_at - device_at - 1), 16);
  const auto function = base::number<std::uint8_t>(text.substr(function_at + 1), 16);
  if (!domain || !bus || !device || *device > 0x1f || !function || *function > 7) {
    return std::nullopt;
  }
  std::array<char, 32> buffer{};
  const int length = std::snprintf(buffer.data(),
                                   buffer.size(),
                                   "%04x:%02x:%02x.%x",
                                   *domain,
                                   unsigned{*bus},
                                   unsigned{*device},
                                   unsigned{*function});
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

std::optional<int> minor_of_node(std::string_view name) noexcept {
  constexpr std::string_view prefix = "nvidia";
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  const auto minor = base::number<int>(name.substr(prefix.size()), 10);
  return minor && *minor >= 0 ? minor : std::nullopt;
}

std::string uuid_text(std::string_view prefix, std::span<const char, 16> bytes) {
  std::string text(prefix);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      text += '-';
    }
    base::append_hex(text, static_cast<std::uint8_t>(bytes[i]));
  }
  return text;
}

std::string normal_device(std::string_view text) {
  if (text == "cpu" || text == "cpu:0") {
    return "host";
  }
  for (const std::string_view framework : {"cuda", "gpu"}) {
    if (text == framework) {
      return "0";
    }
    if (text.starts_with(framework) && text.substr(framework.size()).starts_with(':')) {
      const std::string_view ordinal = text.substr(framework.size() + 1);
      if (const auto number = base::number<int>(ordinal, 10); number && *number >= 0) {
        return std::to_string(*number);
      }
    }
  }
  return std::string(text);
}

std::optional<device_request> parse_device_request(std::string_view notation) {
  const std::string text = normal_device(notation);
  if (const auto ordinal = base::number<int>(text, 10); ordinal && *ordinal >= 0) {
    return device_request{ordinal, {}};
  }
  const std::string lower = base::lower_case(text);
  if (lower.size() < 4 + min_uuid_characters) {
    return std::nullopt;
  }
  for (const std::string_view prefix : {"GPU-", "MIG-"}) {
    if (lower.starts_with(base::lower_case(prefix))) {
      return device_request{std::nullopt, std::string(prefix) + lower.substr(prefix.size())};
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::driver
