// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// The building blocks of tickets (docs/ticket.md): little-endian numbers, and fields of a number,
/// a length and bytes. ticket.cpp gives them their meaning.
namespace gpushm::wire::ticket_detail {

/// Throws invalid_ticket for operation "read ticket".
[[noreturn]] void invalid(std::string_view cause);

/// "field 5", "field 5 of the device".
[[nodiscard]] std::string in_words(std::uint16_t number, std::string_view where);
/// "3 bytes long".
[[nodiscard]] std::string bytes_long(std::size_t count);

template <std::integral T>
void append(std::vector<std::byte>& target, T value) {
  const auto bits = static_cast<std::uint64_t>(static_cast<std::make_unsigned_t<T>>(value));
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    target.push_back(static_cast<std::byte>((bits >> (8U * i)) & 0xFFU));
  }
}

/// Precondition: `bytes` contain the whole number.
template <std::integral T>
[[nodiscard]] T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bits |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8U * i);
  }
  return static_cast<T>(bits);
}

/// Writes the fields of one group, in the order of the calls. Thread-safety: distinct objects:
/// safe.
class field_writer {
 public:
  template <std::integral T>
  void number(std::uint16_t number, T value) {
    begin(number, sizeof(T));
    append(bytes_, value);
  }
  /// Omits a value that readers assume for a missing field.
  template <std::integral T>
  void number_unless(T missing, std::uint16_t number, T value) {
    if (value != missing) {
      this->number(number, value);
    }
  }
  /// Omits an empty string.
  void text(std::uint16_t number, std::string_view value) {
    if (!value.empty()) {
      bytes(number, value);
    }
  }
  template <class Bytes>
  void bytes(std::uint16_t number, const Bytes& value) {
    begin(number, value.size());
    for (const auto each : value) {
      bytes_.push_back(static_cast<std::byte>(each));
    }
  }
  void fields(std::uint16_t number, const field_writer& inner) { bytes(number, inner.bytes_); }

  [[nodiscard]] const std::vector<std::byte>& written() const { return bytes_; }

 private:
  void begin(std::uint16_t number, std::size_t length) {
    append(bytes_, number);
    // A length that does not fit also far exceeds a ticket's limit, which is checked.
    append(bytes_, static_cast<std::uint32_t>(length));
  }

  std::vector<std::byte> bytes_;
};

/// Finds the fields of one group before any is read, since their order has no meaning. Refers to
/// the bytes. Functions throw invalid_ticket for a field that is missing or has the wrong length.
/// Thread-safety: distinct objects: safe.
class field_reader {
 public:
  /// `where` is named in errors ("the device"; empty: top level) and must outlive this object.
  /// Throws invalid_ticket if `bytes` are not fields with distinct numbers.
  field_reader(std::span<const std::byte> bytes, std::string_view where);

  [[nodiscard]] bool has(std::uint16_t number) const { return find(number) != nullptr; }
  [[nodiscard]] std::span<const std::byte> required(std::uint16_t number) const;

  template <std::integral T>
  [[nodiscard]] T required_number(std::uint16_t number) const {
    return number_at<T>(of_length(sizeof(T), number), 0);
  }
  template <std::integral T>
  [[nodiscard]] T number(std::uint16_t number, T missing = 0) const {
    return has(number) ? required_number<T>(number) : missing;
  }
  /// Empty if the field is missing. The bytes are not checked.
  [[nodiscard]] std::string text(std::uint16_t number) const;
  /// Copies a required field.
  template <class Byte, std::size_t Size>
  void copy(std::uint16_t number, std::array<Byte, Size>& target) const {
    const auto bytes = of_length(Size, number);
    std::transform(bytes.begin(), bytes.end(), target.begin(), [](std::byte each) {
      return static_cast<Byte>(each);
    });
  }

 private:
  struct one {
    std::uint16_t number;
    std::span<const std::byte> bytes;
  };

  [[nodiscard]] const one* find(std::uint16_t number) const;
  [[nodiscard]] std::span<const std::byte> of_length(std::size_t length,
                                                     std::uint16_t number) const;

  std::string_view where_;
  std::vector<one> found_;
};

}  // namespace gpushm::wire::ticket_detail
