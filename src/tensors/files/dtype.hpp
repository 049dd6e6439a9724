// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gpushm::tensors {

/// A type of elements, by its name in the safetensors format (safetensors 0.8, `Dtype`).
struct dtype {
  std::string_view name;
  std::uint32_t bits = 0;  ///< of one element
  friend constexpr bool operator==(const dtype& a, const dtype& b) { return a.name == b.name; }
};

/// In the reference's order. The last two are not in the reference: it has no such tensors.
inline constexpr std::array<dtype, 24> all_dtypes{
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64},    {"C32", 32},    {"C128", 128}}};
/// How many of the types a safetensors file can have: the first ones.
inline constexpr std::size_t file_dtypes = 22;

/// Returns nullopt for an unknown name.
[[nodiscard]] constexpr std::optional<dtype> find_dtype(std::string_view name,
                                                        std::size_t among = all_dtypes.size()) {
  for (std::size_t i = 0; i != among; ++i) {
    if (all_dtypes[i].name == name) {
      return all_dtypes[i];
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::tensors
