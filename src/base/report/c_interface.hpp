// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers for implementing the C interface (include/gpushm/*.h).

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "gpushm/gpushm.h"

extern "C" {
/// Not an interface: libgpushm-broker.so sets the result of gpushm_last_error() in libgpushm.so of
/// the same version. Takes ownership of `failure`; null means that there was no memory for it.
GPUSHM_API void gpushm_private_failed(gpushm_error* failure) noexcept;
}

namespace gpushm::base {

/// Makes the exception that is being handled this thread's last error, and returns its code.
[[nodiscard]] gpushm_errc failed() noexcept;

/// Runs the body of a C function: no exception leaves it, and its log lines are held until it is
/// done.
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

/// A string argument. Throws `errc::invalid_argument` if it has a size but no data.
[[nodiscard]] inline std::string_view text_in(gpushm_string text, std::string_view operation) {
  if (text.data == nullptr && text.size != 0) {
    throw_invalid(operation, "a string has a size but no data", "pass both, or neither");
  }
  return {text.data, text.size};
}

/// A buffer argument. Throws `errc::invalid_argument` if it has a size but no data.
[[nodiscard]] inline std::span<const std::byte> bytes_in(const void* data,
                                                         std::size_t size,
                                                         std::string_view operation) {
  if (data == nullptr && size != 0) {
    throw_invalid(operation, "a buffer has a size but no data", "pass both, or neither");
  }
  return {static_cast<const std::byte*>(data), size};
}

/// The destination of a result. Throws `errc::invalid_argument` if it is null.
template <typename Value>
[[nodiscard]] Value& out(Value* where, std::string_view operation) {
  if (where == nullptr) {
    throw_invalid(operation, "the result pointer is NULL", "pass a pointer to the result");
  }
  return *where;
}

/// The usual length of a wait.
inline constexpr std::chrono::milliseconds default_wait{30'000};

/// A timeout argument; `usual`: what GPUSHM_DEFAULT_TIMEOUT is. Throws `errc::invalid_argument` for
/// other negative values.
[[nodiscard]] inline std::chrono::milliseconds timeout_in(
    std::int64_t timeout_ms,
    std::string_view operation,
    std::chrono::milliseconds usual = default_wait) {
  if (timeout_ms == GPUSHM_DEFAULT_TIMEOUT) {
    return usual;
  }
  if (timeout_ms < 0) {
    throw_invalid(operation,
                  "the timeout is " + std::to_string(timeout_ms) + " milliseconds",
                  "pass 0 to not wait, GPUSHM_FOREVER for no limit, or GPUSHM_DEFAULT_TIMEOUT");
  }
  return std::chrono::milliseconds(timeout_ms);
}

inline void check_struct_size(std::size_t size, std::string_view operation) {
  if (size < sizeof(std::size_t)) {
    throw_invalid(operation,
                  "struct_size is " + std::to_string(size),
                  "set it to the structure's size (GPUSHM_INIT)");
  }
}

/// Options from a caller compiled with an older or newer version, which may have fewer or more of
/// them; null: all defaults. Throws `errc::invalid_argument` if an option is set that this version
/// does not support.
template <typename Options>
[[nodiscard]] Options options_in(const Options* options, std::string_view operation) {
  Options known{};
  known.struct_size = sizeof known;
  if (options == nullptr) {
    return known;
  }
  check_struct_size(options->struct_size, operation);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(options);
  if (options->struct_size > sizeof known &&
      std::any_of(bytes + sizeof known, bytes + options->struct_size, [](unsigned char byte) {
        return byte != 0;
      })) {
    throw_invalid(operation,
                  "an option is set that this version of libgpushm does not support",
                  "install the version that the program was compiled with, or leave the option 0");
  }
  std::memcpy(&known, options, std::min(options->struct_size, sizeof known));
  known.struct_size = sizeof known;
  return known;
}

/// Writes as much of `result` as the caller's structure has room for. Throws
/// `errc::invalid_argument`.
template <typename Result>
void result_out(const Result& result, Result* where, std::string_view operation) {
  const std::size_t size = out(where, operation).struct_size;
  check_struct_size(size, operation);
  constexpr std::size_t head = sizeof(std::size_t);
  std::memcpy(reinterpret_cast<unsigned char*>(where) + head,
              reinterpret_cast<const unsigned char*>(&result) + head,
              std::min(size, sizeof result) - head);
}

/// Copies a string to an array member of a result structure. Throws `errc::protocol_error` if it
/// does not fit.
template <typename Array>
void text_out(std::string_view text, Array& where, std::uint32_t& length) {
  if (text.size() >= std::size(where)) {
    throw error(
        errc::protocol_error,
        {},
        {},
        "the broker sent a string of " + std::to_string(text.size()) + " bytes",
        "at most " + std::to_string(std::size(where) - 1) + " are allowed; report this as a bug");
  }
  *std::copy(text.begin(), text.end(), std::begin(where)) = '\0';
  length = static_cast<std::uint32_t>(text.size());
}

/// An enumerator argument. Throws `errc::invalid_argument` if it is above `last`.
template <typename Enum, typename Given>
[[nodiscard]] Enum enum_in(Given value, Enum last, std::string_view operation) {
  const auto number = static_cast<int>(value);
  if (number < 0 || number > static_cast<int>(last)) {
    throw_invalid(operation,
                  "an option has the invalid value " + std::to_string(number),
                  "use an enumerator that gpushm.h defines");
  }
  return static_cast<Enum>(number);
}

[[nodiscard]] inline gpushm_string c_text(std::string_view text) noexcept {
  return {text.data(), text.size()};
}

}  // namespace gpushm::base
