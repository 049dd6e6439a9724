// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpushm/types.hpp"

namespace gpushm::base {

/// Memory of this kind stays its exporter's: the exporter is asked before a new importer gets it,
/// and the segment ends with the exporter.
[[nodiscard]] constexpr bool is_exporter_bound(gpushm::backend kind) noexcept {
  return kind == gpushm::backend::cuda_ipc || kind == gpushm::backend::cuda_pool;
}

}  // namespace gpushm::base
