// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "gpushm/types.hpp"

namespace gpushm::base {

/// True for exporter-bound memory: the broker asks the exporter before a new importer gets it, and
/// the segment is destroyed with the exporter.
[[nodiscard]] constexpr bool is_exporter_bound(gpushm::backend kind) noexcept {
  return kind == gpushm::backend::cuda_ipc || kind == gpushm::backend::cuda_pool;
}

/// True for segments that lose their name when their creator ends.
[[nodiscard]] constexpr bool ends_with_creator(gpushm::backend kind) noexcept {
  return is_exporter_bound(kind) || kind == gpushm::backend::timeline;
}

/// True for what a ticket describes, which the creator sends and the broker does not read.
[[nodiscard]] constexpr bool has_ticket(gpushm::backend kind) noexcept {
  return ends_with_creator(kind);
}

/// True for segments that are no memory of a GPU.
[[nodiscard]] constexpr bool is_on_host(gpushm::backend kind) noexcept {
  return kind == gpushm::backend::host || kind == gpushm::backend::signals ||
         kind == gpushm::backend::timeline || kind == gpushm::backend::descriptor;
}

/// True for what another process fetches with one reply: an open grants no lease, so nobody but
/// its creator decides how long it is registered.
[[nodiscard]] constexpr bool is_only_fetched(gpushm::backend kind) noexcept {
  return kind == gpushm::backend::descriptor;
}

/// The number of chunks of a segment that does not choose it; nullopt: it chooses, at least 1.
[[nodiscard]] constexpr std::optional<std::uint32_t> fixed_chunks(gpushm::backend kind) noexcept {
  switch (kind) {
    case gpushm::backend::cuda_pool:
    case gpushm::backend::signals:
    case gpushm::backend::descriptor:
      return 1;
    case gpushm::backend::cuda_ipc:
    case gpushm::backend::timeline:
      return 0;
    case gpushm::backend::host:
    case gpushm::backend::cuda_vmm:
      break;
  }
  return std::nullopt;
}

}  // namespace gpushm::base
