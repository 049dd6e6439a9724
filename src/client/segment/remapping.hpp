// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "client/lease/chunk_stream.hpp"
#include "client/lease/segment_lease.hpp"
#include "gpu/memory/backends/backend.hpp"

// What suspended segments and windows share: they map the chunks of a lease at addresses that this
// process already has.
namespace gpushm::client_detail {

/// The chunks of a segment that this process leases: its own copies, else those of the broker.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class leased_chunks final : public memory::chunk_source {
 public:
  /// `own`: all of them, or none; exists as long as this object. `timeout` is for each batch that
  /// the broker sends.
  leased_chunks(std::shared_ptr<segment_lease> lease,
                const segment_lease::kept_chunks& own,
                std::chrono::milliseconds timeout)
      : lease_(std::move(lease)), own_(own), timeout_(timeout) {}

  /// Throws as `chunk_stream::next`, too_many_descriptors, system_error.
  [[nodiscard]] std::optional<chunk> next() override;

 private:
  std::shared_ptr<segment_lease> lease_;
  const segment_lease::kept_chunks& own_;
  std::chrono::milliseconds timeout_;
  std::uint32_t next_ = 0;
  std::optional<chunk_stream> broker_;
};

/// Returns descriptors of all chunks, so that the memory does not depend on the broker's life; none
/// if there is no room for them. Blocks for round trips to the broker unless the lease keeps them.
/// Throws as `leased_chunks::next`.
[[nodiscard]] segment_lease::kept_chunks copy_chunks(const std::shared_ptr<segment_lease>& lease,
                                                     std::chrono::milliseconds timeout);

/// Throws segment_busy if GPU work is in flight on the GPU `ordinal` (-1: the host). Detects only
/// that of the legacy default stream, and captures: the program's other streams are not known.
void check_idle(int ordinal, std::string_view operation, const std::string& name);

}  // namespace gpushm::client_detail
