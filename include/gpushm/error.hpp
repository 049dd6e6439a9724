// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gpushm/gpushm.h"
#include "gpushm/types.hpp"

namespace gpushm {
inline namespace v1 {

/// Reasons for a failure. The values travel on the wire and are used in scripts: never renumber,
/// only append. `docs/errors.md` lists each with its causes and remedies.
enum class errc : std::uint16_t {
  // begin: scripts/error_codes.py
  invalid_argument = GPUSHM_ERRC_INVALID_ARGUMENT,
  no_such_segment = GPUSHM_ERRC_NO_SUCH_SEGMENT,
  already_exists = GPUSHM_ERRC_ALREADY_EXISTS,
  permission_denied = GPUSHM_ERRC_PERMISSION_DENIED,
  timed_out = GPUSHM_ERRC_TIMED_OUT,
  broker_unreachable = GPUSHM_ERRC_BROKER_UNREACHABLE,
  broker_gone = GPUSHM_ERRC_BROKER_GONE,
  protocol_error = GPUSHM_ERRC_PROTOCOL_ERROR,
  unsupported_version = GPUSHM_ERRC_UNSUPPORTED_VERSION,
  quota_exceeded = GPUSHM_ERRC_QUOTA_EXCEEDED,
  out_of_memory = GPUSHM_ERRC_OUT_OF_MEMORY,
  too_many_segments = GPUSHM_ERRC_TOO_MANY_SEGMENTS,
  too_many_descriptors = GPUSHM_ERRC_TOO_MANY_DESCRIPTORS,
  too_many_connections = GPUSHM_ERRC_TOO_MANY_CONNECTIONS,
  too_many_requests = GPUSHM_ERRC_TOO_MANY_REQUESTS,
  device_not_found = GPUSHM_ERRC_DEVICE_NOT_FOUND,
  device_not_visible = GPUSHM_ERRC_DEVICE_NOT_VISIBLE,
  driver_unavailable = GPUSHM_ERRC_DRIVER_UNAVAILABLE,
  driver_error = GPUSHM_ERRC_DRIVER_ERROR,
  wrong_descriptor_kind = GPUSHM_ERRC_WRONG_DESCRIPTOR_KIND,
  wrong_descriptor_count = GPUSHM_ERRC_WRONG_DESCRIPTOR_COUNT,
  size_mismatch = GPUSHM_ERRC_SIZE_MISMATCH,
  forked = GPUSHM_ERRC_FORKED,
  peer_died = GPUSHM_ERRC_PEER_DIED,
  stale_generation = GPUSHM_ERRC_STALE_GENERATION,
  message_too_large = GPUSHM_ERRC_MESSAGE_TOO_LARGE,
  address_in_use = GPUSHM_ERRC_ADDRESS_IN_USE,
  ambiguous_domain = GPUSHM_ERRC_AMBIGUOUS_DOMAIN,
  already_published = GPUSHM_ERRC_ALREADY_PUBLISHED,
  segment_removed = GPUSHM_ERRC_SEGMENT_REMOVED,
  system_error = GPUSHM_ERRC_SYSTEM_ERROR,
  not_exportable = GPUSHM_ERRC_NOT_EXPORTABLE,
  pid_collision = GPUSHM_ERRC_PID_COLLISION,
  gone_or_replaced = GPUSHM_ERRC_GONE_OR_REPLACED,
  invalid_ticket = GPUSHM_ERRC_INVALID_TICKET,
  peer_unreachable = GPUSHM_ERRC_PEER_UNREACHABLE,
  share_exceeded = GPUSHM_ERRC_SHARE_EXCEEDED,
  writer_ending = GPUSHM_ERRC_WRITER_ENDING,
  cancelled = GPUSHM_ERRC_CANCELLED,
  value_out_of_range = GPUSHM_ERRC_VALUE_OUT_OF_RANGE,
  too_many_waits = GPUSHM_ERRC_TOO_MANY_WAITS,
  invalid_file = GPUSHM_ERRC_INVALID_FILE,
  not_supported = GPUSHM_ERRC_NOT_SUPPORTED,
  segment_busy = GPUSHM_ERRC_SEGMENT_BUSY,
  // end: scripts/error_codes.py
};

/// The stable name of `code`, as in `docs/errors.md` ("no_such_segment"); "unknown" for a value
/// unknown to this version. Never throws.
[[nodiscard]] inline std::string_view to_string(errc code) noexcept {
  return glue::view(gpushm_errc_name(static_cast<gpushm_errc>(code)));
}

/// The parts of an error besides its code that a program may need.
struct error_details {
  std::int32_t pid = 0;  ///< of the process that the cause is about; 0: none, or not known
  std::optional<std::uint64_t> value = {};  ///< that the cause is about (docs/errors.md)
};

namespace glue {

[[nodiscard]] inline gpushm_error_details details_of(const error_details& details) noexcept {
  auto result = sized<gpushm_error_details>();
  result.pid = details.pid;
  result.has_value = details.value.has_value();
  result.value = details.value.value_or(0);
  return result;
}

}  // namespace glue

/// The only exception type of gpushm. `what()` returns `OPERATION "OBJECT": CAUSE (NEXT STEP)`,
/// without empty parts.
///
/// Every library of a process has the same type, regardless of its compiler: one library can catch
/// what another throws.
///
/// Thread-safety: distinct objects: safe; shared objects: safe (immutable). Copying does not throw.
class GPUSHM_API error : public std::exception {
 public:
  /// Throws `std::bad_alloc`.
  error(errc code,
        std::string_view operation,
        std::string_view object,
        std::string_view cause,
        std::string_view next_step = {},
        const error_details& details = {})
      : handle_(nullptr) {
    const gpushm_error_details given = glue::details_of(details);
    handle_ = gpushm_error_create(static_cast<gpushm_errc>(code),
                                  glue::text(operation),
                                  glue::text(object),
                                  glue::text(cause),
                                  glue::text(next_step),
                                  &given);
    if (handle_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  /// Takes ownership of `handle`, which must not be null.
  explicit error(gpushm_error* handle) noexcept : handle_(handle) {}
  error(const error& other) noexcept : handle_(gpushm_error_dup(other.handle_)) {}
  error& operator=(const error& other) noexcept {
    error copy(other);
    std::swap(handle_, copy.handle_);
    return *this;
  }
  ~error() override { gpushm_error_free(handle_); }

  [[nodiscard]] const char* what() const noexcept override {
    return gpushm_error_message(handle_).data;
  }
  [[nodiscard]] errc code() const noexcept { return static_cast<errc>(gpushm_error_code(handle_)); }
  [[nodiscard]] std::string operation() const {
    return std::string(glue::view(gpushm_error_operation(handle_)));
  }
  [[nodiscard]] std::string object() const {
    return std::string(glue::view(gpushm_error_object(handle_)));
  }
  [[nodiscard]] std::string cause() const {
    return std::string(glue::view(gpushm_error_cause(handle_)));
  }
  [[nodiscard]] std::string next_step() const {
    return std::string(glue::view(gpushm_error_next_step(handle_)));
  }
  /// The process that the cause is about, such as the one that has died or has the name, as the
  /// broker sees it (as this process does, without a broker); 0: none, or not known.
  [[nodiscard]] std::int32_t pid() const noexcept { return gpushm_error_pid(handle_); }
  /// The number that the cause is about, such as a timeline's last value: docs/errors.md says
  /// which, for each code.
  [[nodiscard]] std::optional<std::uint64_t> value() const noexcept {
    std::uint64_t result = 0;
    return gpushm_error_value(handle_, &result) ? std::optional(result) : std::nullopt;
  }
  [[nodiscard]] error_details details() const noexcept { return {pid(), value()}; }

  /// Returns the same error with another operation and object.
  [[nodiscard]] error in(std::string_view operation, std::string_view object) const {
    return {code(),
            operation,
            object,
            glue::view(gpushm_error_cause(handle_)),
            glue::view(gpushm_error_next_step(handle_)),
            details()};
  }

  /// Owned by this object.
  [[nodiscard]] const gpushm_error* handle() const noexcept { return handle_; }

 private:
  gpushm_error* handle_;
};

namespace glue {

/// Throws the failure that a C function has just returned, unless that is GPUSHM_OK.
inline void check(gpushm_errc code) {
  if (code != GPUSHM_OK) {
    throw error(gpushm_error_dup(gpushm_last_error()));
  }
}

}  // namespace glue

}  // namespace v1
}  // namespace gpushm
