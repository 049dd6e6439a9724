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
#include "protocol/wire/ticket.hpp"

/// Tickets, and their bytes written by hand from docs/ticket.md: does not use the code under test,
/// except for the checksum, which has its own test.
namespace gpushm::wire::ticket_samples {

using bytes = std::vector<std::byte>;

inline constexpr std::size_t header_bytes = 20;

// ---- hand-written bytes ----

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
/// Sets magic, length and checksum; keeps the versions. `data` has at least a header.
[[nodiscard]] bytes refit(bytes data);
/// Adds a header.
[[nodiscard]] bytes whole(const bytes& fields, std::uint16_t version = 1, std::uint16_t oldest = 1);

/// The fields of one group, by number, and the bytes after them.
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
  place word;
  /// All of them in one group. Omits empty ones, and does not replace fields of `top`.
  [[nodiscard]] place all() const;
  [[nodiscard]] bytes whole() const;
};

// ---- samples ----

struct named {
  const char* name;
  ticket value;
};
/// Everything that this version writes. Never change one: the golden files contain their bytes.
[[nodiscard]] std::vector<named> of_each_kind();

/// Every field of the specification that a ticket of memory can have, and its value.
[[nodiscard]] parts every_field();
[[nodiscard]] ticket value_of_every_field();
/// Without a broker.
[[nodiscard]] parts of_timeline();

/// A ticket of a later version that this one reads as `value_of_every_field()`: has unknown fields
/// and another order.
[[nodiscard]] bytes future();
/// A ticket of a later version whose bytes after the header have no meaning for this one.
[[nodiscard]] bytes too_new();

[[nodiscard]] std::string golden_path(const std::string& name);
[[nodiscard]] bytes golden(const std::string& name);
[[nodiscard]] std::vector<std::string> golden_names();

// ---- reading ----

/// Reads a copy of the exact size, so that sanitizers detect reads past the end.
[[nodiscard]] ticket decode_exactly(std::span<const std::byte> data);
/// The error of reading `data`; nullopt if it is valid.
[[nodiscard]] std::optional<error> rejection(std::span<const std::byte> data);
/// Compare the whole message, including the code's next step.
void expect_invalid(std::span<const std::byte> data, const std::string& cause);
void expect_unsupported(std::span<const std::byte> data, const std::string& cause);

}  // namespace gpushm::wire::ticket_samples
