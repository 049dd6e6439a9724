// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/base64.hpp"

#include <cstdint>

namespace gpushm::api_client {

std::optional<std::string> base64_decoded(std::string_view text) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  std::size_t symbols = 0;
  std::size_t padding = 0;
  for (const char c : text) {
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      continue;
    }
    if (c == '=') {
      ++padding;
      continue;
    }
    const std::size_t value = alphabet.find(c);
    if (value == std::string_view::npos || padding > 0) {
      return std::nullopt;
    }
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    if (++symbols % 4 == 0) {
      out += static_cast<char>(bits >> 16U & 0xffU);
      out += static_cast<char>(bits >> 8U & 0xffU);
      out += static_cast<char>(bits & 0xffU);
    }
  }
  const std::size_t rest = symbols % 4;
  if (rest == 1 || padding != (rest == 0 ? 0 : 4 - rest)) {
    return std::nullopt;
  }
  if (rest == 2) {
    out += static_cast<char>(bits >> 4U & 0xffU);
  } else if (rest == 3) {
    out += static_cast<char>(bits >> 10U & 0xffU);
    out += static_cast<char>(bits >> 2U & 0xffU);
  }
  return out;
}

}  // namespace gpushm::api_client
