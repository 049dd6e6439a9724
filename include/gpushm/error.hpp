// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "gpushm/export.hpp"

namespace gpushm {

/// Why an operation failed. The values travel on the wire and in scripts: never renumber, only
/// append. `docs/errors.md` lists each with its causes and remedies.
enum class errc : std::uint16_t {
  invalid_argument = 1,
  no_such_segment = 2,
  already_exists = 3,
  permission_denied = 4,
  timed_out = 5,
  broker_unreachable = 6,
  broker_gone = 7,
  protocol_error = 8,
  unsupported_version = 9,
  quota_exceeded = 10,
  out_of_memory = 11,
  too_many_segments = 12,
  too_many_descriptors = 13,
  too_many_connections = 14,
  too_many_requests = 15,
  device_not_found = 16,
  device_not_visible = 17,
  driver_unavailable = 18,
  driver_error = 19,
  wrong_descriptor_kind = 20,
  wrong_descriptor_count = 21,
  size_mismatch = 22,
  forked = 23,
  peer_died = 24,
  stale_generation = 25,
  message_too_large = 26,
  address_in_use = 27,
  ambiguous_domain = 28,
  already_published = 30,
  segment_removed = 31,
  system_error = 32,
  not_exportable = 33,
  pid_collision = 34,
  gone_or_replaced = 35,
  invalid_ticket = 36,
  peer_unreachable = 37,
  share_exceeded = 38,
  writer_ending = 39,
  cancelled = 40,
};

/// The stable name of `code`, as in `docs/errors.md` ("no_such_segment"); "unknown" for a value
/// this version does not know. Never throws.
[[nodiscard]] GPUSHM_API std::string_view to_string(errc code) noexcept;

/// The one exception type of gpushm. `what()` reads
/// `OPERATION "OBJECT": CAUSE (NEXT STEP)`; parts that are empty are left out.
///
/// Distinct objects: safe. Shared objects: safe (immutable). Copying does not throw.
class GPUSHM_API error : public std::runtime_error {
 public:
  error(errc code,
        std::string_view operation,
        std::string_view object,
        std::string_view cause,
        std::string_view next_step = {});
  error(const error&) noexcept;
  error& operator=(const error&) noexcept;
  ~error() override;

  [[nodiscard]] errc code() const noexcept;
  [[nodiscard]] const std::string& operation() const noexcept;
  [[nodiscard]] const std::string& object() const noexcept;
  [[nodiscard]] const std::string& cause() const noexcept;
  [[nodiscard]] const std::string& next_step() const noexcept;

  /// The same error told from the point of view of another operation and object.
  [[nodiscard]] error in(std::string_view operation, std::string_view object) const;

 private:
  struct parts;
  std::shared_ptr<const parts> parts_;
};

}  // namespace gpushm
