// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the functions of the C interface (include/gpushm/*.h) are made with.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "gpushm/error.hpp"
#include "gpushm/gpushm.h"

extern "C" {
/// Not an interface: libgpushm-broker.so tells libgpushm.so of the same version what
/// gpushm_last_error() says from now on. Takes `failure` over; null: there was no memory for it.
GPUSHM_API void gpushm_private_failed(gpushm_error* failure) noexcept;
}

namespace gpushm::base {

/// Makes the exception that is being handled this thread's last error, and returns its code.
[[nodiscard]] gpushm_errc failed() noexcept;

/// The body of a function of C: no exception leaves it, and its log lines wait until it is done.
template <typename Body>
[[nodiscard]] gpushm_errc c_call(Body&& body) noexcept {
  try {
    const held_log_lines lines;
    body();
    return GPUSHM_OK;
  } catch (...) {
    return failed();
  }
}

[[noreturn]] inline void throw_invalid(std::string_view operation,
                                       std::string_view cause,
                                       std::string_view next_step) {
  throw error(errc::invalid_argument, operation, {}, cause, next_step);
}

/// A text that came in. Throws `errc::invalid_argument` for one that is nowhere.
[[nodiscard]] inline std::string_view text_in(gpushm_string text, std::string_view operation) {
  if (text.data == nullptr && text.size != 0) {
    throw_invalid(operation, "a text has a size and no data", "give both, or neither");
  }
  return {text.data, text.size};
}

/// Bytes that came in. Throws `errc::invalid_argument` for those that are nowhere.
[[nodiscard]] inline std::span<const std::byte> bytes_in(const void* data,
                                                         std::size_t size,
                                                         std::string_view operation) {
  if (data == nullptr && size != 0) {
    throw_invalid(operation, "bytes have a size and no data", "give both, or neither");
  }
  return {static_cast<const std::byte*>(data), size};
}

/// Where a result goes. Throws `errc::invalid_argument` for nowhere.
template <typename Value>
[[nodiscard]] Value& out(Value* where, std::string_view operation) {
  if (where == nullptr) {
    throw_invalid(operation, "there is no place for the result", "give a pointer that is not NULL");
  }
  return *where;
}

inline void check_struct_size(std::size_t size, std::string_view operation) {
  if (size < sizeof(std::size_t)) {
    throw_invalid(operation,
                  "struct_size is " + std::to_string(size),
                  "set it to the structure's size (GPUSHM_INIT)");
  }
}

/// Options that came in, of a caller that may know fewer or more of them than this version; null:
/// all are the default. Throws `errc::invalid_argument` for one that this version does not know.
template <typename Options>
[[nodiscard]] Options options_in(const Options* given, std::string_view operation) {
  Options known{};
  known.struct_size = sizeof known;
  if (given == nullptr) {
    return known;
  }
  check_struct_size(given->struct_size, operation);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  if (given->struct_size > sizeof known &&
      std::any_of(bytes + sizeof known, bytes + given->struct_size, [](unsigned char byte) {
        return byte != 0;
      })) {
    throw_invalid(operation,
                  "an option is set that this version of libgpushm does not know",
                  "install the version that the program was compiled with, or leave it 0");
  }
  std::memcpy(&known, given, std::min(given->struct_size, sizeof known));
  known.struct_size = sizeof known;
  return known;
}

/// Writes what the caller's structure has room for. Throws `errc::invalid_argument`.
template <typename Result>
void result_out(const Result& made, Result* where, std::string_view operation) {
  const std::size_t size = out(where, operation).struct_size;
  check_struct_size(size, operation);
  constexpr std::size_t head = sizeof(std::size_t);
  std::memcpy(reinterpret_cast<unsigned char*>(where) + head,
              reinterpret_cast<const unsigned char*>(&made) + head,
              std::min(size, sizeof made) - head);
}

/// A text that goes out in a structure, whose member for it is an array. Throws
/// `errc::protocol_error` for one that does not fit.
template <typename Array>
void text_out(std::string_view text, Array& where, std::uint32_t& length) {
  if (text.size() >= std::size(where)) {
    throw error(errc::protocol_error,
                {},
                {},
                "the broker says a text of " + std::to_string(text.size()) + " bytes",
                "at most " + std::to_string(std::size(where) - 1) + " are allowed; report it");
  }
  *std::copy(text.begin(), text.end(), std::begin(where)) = '\0';
  length = static_cast<std::uint32_t>(text.size());
}

/// An enumerator that came in. Throws `errc::invalid_argument` for one above `last`.
template <typename Enum, typename Given>
[[nodiscard]] Enum enum_in(Given value, Enum last, std::string_view operation) {
  const auto number = static_cast<int>(value);
  if (number < 0 || number > static_cast<int>(last)) {
    throw_invalid(operation,
                  "an option has the value " + std::to_string(number),
                  "give one that gpushm.h names");
  }
  return static_cast<Enum>(number);
}

[[nodiscard]] inline gpushm_string c_text(std::string_view text) noexcept {
  return {text.data(), text.size()};
}

}  // namespace gpushm::base
