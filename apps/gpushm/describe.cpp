// SPDX-License-Identifier: Apache-2.0
#include "describe.hpp"

#include <algorithm>

#include "base/hex.hpp"
#include "base/names.hpp"
#include "output.hpp"

namespace gpushm::cli {

std::string epoch_text(const epoch& value) {
  return base::hex_text(value);
}

std::string device_text(const device_id& device) {
  std::string text = device.text();
  std::string place = device.pci_address;
  if (device.minor >= 0) {
    place +=
        (place.empty() ? "" : ", ") + std::string("/dev/nvidia") + std::to_string(device.minor);
  }
  return place.empty() ? text : text + " (" + place + ")";
}

fields segment_fields(const segment& mapped) {
  return {{"size", exact_size_text(mapped.size_bytes())},
          {"device", device_text(mapped.device())},
          {"backend", std::string(to_string(mapped.backend()))},
          {"lifetime", std::string(to_string(mapped.lifetime()))},
          {"generation", mapped.generation() == 0 ? "none" : std::to_string(mapped.generation())}};
}

std::string as_text(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::transform(bytes.begin(), bytes.end(), text.begin(), [](std::byte value) {
    return static_cast<char>(value);
  });
  return text;
}

bool is_printable(std::span<const std::byte> bytes) {
  const std::string text = as_text(bytes);
  return base::is_utf8(text) && std::none_of(text.begin(), text.end(), [](char c) {
           const auto value = static_cast<unsigned char>(c);
           return (value < 0x20 && c != '\n' && c != '\t') || value == 0x7F;
         });
}

std::string base64(std::span<const std::byte> bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8U | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? digits[group >> (18U - 6U * k) & 63U] : '=';
    }
  }
  return text;
}

}  // namespace gpushm::cli
