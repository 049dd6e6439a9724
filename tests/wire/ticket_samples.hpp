// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/error.hpp"
#include "wire/ticket.hpp"

/// Tickets, and their bytes made by hand from docs/ticket.md: nothing here uses the code
/// that is tested, but for the checksum, which has a test of its own.
namespace gpushm::wire::ticket_samples {

using bytes = std::vector<std::byte>;

inline constexpr std::size_t header_bytes = 20;

// ---- bytes by hand ----

[[nodiscard]] bytes of(std::string_view text);
[[nodiscard]] bytes little(std::uint64_t value, std::size_t size);
/// `count` bytes: `first`, `first` + 1, ...
[[nodiscard]] bytes counting(unsigned first, std::size_t count);
/// The same as an array.
template <class Byte, std::size_t Size>
[[nodiscard]] std::array<Byte, Size> counting(unsigned first) {
  std::array<Byte, Size> result{};
  for (std::size_t i = 0; i < Size; ++i) {
    result[i] = static_cast<Byte>(first + i);
  }
  return result;
}
void add(bytes& target, const bytes& more);
void put(bytes& target, std::size_t offset, const bytes& value);
[[nodiscard]] bytes one_field(std::uint16_t number, const bytes& value);
/// CRC-32 by its definition, bit by bit.
[[nodiscard]] std::uint32_t slow_crc(const bytes& data);
/// Makes magic, length and checksum fit; the versions stay. At least a header.
[[nodiscard]] bytes refit(bytes data);
/// With a header in front.
[[nodiscard]] bytes whole(const bytes& fields, std::uint16_t version = 1, std::uint16_t oldest = 1);

/// The fields of one place, by number, and bytes behind them.
struct place {
  std::map<std::uint16_t, bytes> fields;
  bytes tail;
  [[nodiscard]] bytes flat() const;
};

struct parts {
  place top;
  place device;
  place exporter;
  place legacy;
  place pool;
  place broker;
  /// All of them in one place. Empty ones are left out, what `top` has is not replaced.
  [[nodiscard]] place all() const;
  [[nodiscard]] bytes whole() const;
};

// ---- samples ----

struct named {
  const char* name;
  ticket value;
};
/// Of all that this version writes. Never change one: the golden files hold their bytes.
[[nodiscard]] std::vector<named> of_each_kind();

/// Every field of the specification, and what it says.
[[nodiscard]] parts every_field();
[[nodiscard]] ticket value_of_every_field();

/// Of a later version that this one can read as `value_of_every_field()`: fields that it does not
/// know, in another order.
[[nodiscard]] bytes future();
/// Of a later version whose bytes behind the header mean nothing here.
[[nodiscard]] bytes too_new();

[[nodiscard]] std::string golden_path(const std::string& name);
[[nodiscard]] bytes golden(const std::string& name);
[[nodiscard]] std::vector<std::string> golden_names();

// ---- reading ----

/// From a copy without room behind it, so that a sanitizer sees a read past the end.
[[nodiscard]] ticket decode_exactly(std::span<const std::byte> data);
/// Of refusing `data`; nothing when it is read.
[[nodiscard]] std::optional<error> refusal(std::span<const std::byte> data);
/// The whole text is compared, with the next step that belongs to the code.
void expect_invalid(std::span<const std::byte> data, const std::string& cause);
void expect_unsupported(std::span<const std::byte> data, const std::string& cause);

}  // namespace gpushm::wire::ticket_samples
