// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/chunk_plan.hpp"

#include <limits>

#include "gpushm/error.hpp"

namespace gpushm::memory {

namespace {

/// Returns 0 if the result does not fit.
std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  const std::uint64_t rest = value % step;
  if (rest == 0) {
    return value;
  }
  const std::uint64_t missing = step - rest;
  return value > std::numeric_limits<std::uint64_t>::max() - missing ? 0 : value + missing;
}

}  // namespace

chunk_plan plan_chunks(std::uint64_t size_bytes,
                       std::uint64_t chunk_bytes,
                       std::uint64_t granularity) {
  const auto fail = [](std::string_view cause, std::string_view next_step) {
    throw error(errc::invalid_argument, "create", {}, cause, next_step);
  };
  if (size_bytes == 0) {
    fail("the size is 0 bytes", "give a size of at least 1 byte");
  }
  const std::uint64_t total = round_up(size_bytes, granularity);
  const std::uint64_t step = chunk_bytes == 0 ? total : round_up(chunk_bytes, granularity);
  if (total == 0 || step == 0) {
    fail("the size does not fit into 64 bits once rounded up", "give a smaller size");
  }
  if (step >= total) {
    return {total, total, 1};
  }
  const std::uint64_t count = total / step + (total % step == 0 ? 0 : 1);  // a sum could wrap
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    fail("the segment would need " + std::to_string(count) + " chunks", "use larger chunks");
  }
  return {step, total - step * (count - 1), static_cast<std::uint32_t>(count)};
}

}  // namespace gpushm::memory
