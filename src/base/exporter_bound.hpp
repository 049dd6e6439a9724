// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/types.hpp"

namespace gpushm::base {

/// True for exporter-bound memory: the broker asks the exporter before a new importer gets it, and
/// the segment is destroyed with the exporter.
[[nodiscard]] constexpr bool is_exporter_bound(gpushm::backend kind) noexcept {
  return kind == gpushm::backend::cuda_ipc || kind == gpushm::backend::cuda_pool;
}

}  // namespace gpushm::base
