// SPDX-License-Identifier: Apache-2.0
#include "protocol/wire/ticket_fields.hpp"

#include <iterator>

#include "gpushm/error.hpp"

namespace gpushm::wire::ticket_detail {

namespace {

// Layout of a field, see docs/ticket.md.
constexpr std::size_t number_offset = 0;
constexpr std::size_t length_offset = 2;
constexpr std::size_t bytes_offset = 6;

}  // namespace

void invalid(std::string_view cause) {
  throw error(errc::invalid_ticket,
              "read ticket",
              {},
              cause,
              "transfer the exporter's bytes completely and unchanged");
}

std::string in_words(std::uint16_t number, std::string_view where) {
  std::string result = "field " + std::to_string(number);
  if (!where.empty()) {
    result.append(" of ").append(where);
  }
  return result;
}

std::string bytes_long(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " byte long" : " bytes long");
}

field_reader::field_reader(std::span<const std::byte> bytes, std::string_view where)
    : where_(where) {
  while (!bytes.empty()) {
    if (bytes.size() < bytes_offset) {
      std::string whole(where.empty() ? "it" : where);
      invalid(whole.append(" ends within a field's number and length"));
    }
    const auto number = number_at<std::uint16_t>(bytes, number_offset);
    const auto length = number_at<std::uint32_t>(bytes, length_offset);
    bytes = bytes.subspan(bytes_offset);
    if (length > bytes.size()) {
      invalid(in_words(number, where) + " is " + bytes_long(length) +
              ", bytes left: " + std::to_string(bytes.size()));
    }
    if (has(number)) {
      invalid(in_words(number, where) + " is duplicated");
    }
    found_.push_back({number, bytes.first(length)});
    bytes = bytes.subspan(length);
  }
}

std::span<const std::byte> field_reader::required(std::uint16_t number) const {
  const one* const field = find(number);
  if (field == nullptr) {
    invalid(in_words(number, where_) + " is missing");
  }
  return field->bytes;
}

std::string field_reader::text(std::uint16_t number) const {
  std::string result;
  if (const one* const field = find(number)) {
    std::transform(
        field->bytes.begin(), field->bytes.end(), std::back_inserter(result), [](std::byte each) {
          return static_cast<char>(each);
        });
  }
  return result;
}

const field_reader::one* field_reader::find(std::uint16_t number) const {
  const auto at = std::find_if(
      found_.begin(), found_.end(), [&](const one& field) { return field.number == number; });
  return at == found_.end() ? nullptr : &*at;
}

std::span<const std::byte> field_reader::of_length(std::size_t length, std::uint16_t number) const {
  const auto bytes = required(number);
  if (bytes.size() != length) {
    invalid(in_words(number, where_) + " is " + bytes_long(bytes.size()) + ", not " +
            std::to_string(length));
  }
  return bytes;
}

}  // namespace gpushm::wire::ticket_detail
