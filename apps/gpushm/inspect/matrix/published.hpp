// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/inspect/matrix/rows.hpp"

namespace gpushm::cli::matrix {

/// A row of a published table, measured by its authors with plain CUDA IPC handles.
struct published_row {
  bool host_ipc = false;
  bool host_pid = false;
  bool share_processes = false;
  bool privileged = false;
  /// The CUDA runtime's error text: "invalid device context"; empty: success.
  std::string_view failure;
};

struct published_table {
  std::string_view id;     ///< "T1"
  std::string_view title;  ///< how the pods got their GPUs
  gpu_choice gpus = gpu_choice::one_each;
  std::vector<published_row> rows;
};

/// The published tables, with their original order of rows.
[[nodiscard]] const std::vector<published_table>& published_tables();

/// The number of the row with the setting of a published row. Unless processes were shared, both
/// programs were the first in their containers, so their PIDs were equal.
[[nodiscard]] int row_number_of(const published_table& table, const published_row& published);

/// The CUDA runtime's text for a result of the driver: "invalid device context" for
/// "CUDA_ERROR_INVALID_CONTEXT (201)"; `failure` itself if the tables do not contain it.
[[nodiscard]] std::string runtime_words(std::string_view failure);

}  // namespace gpushm::cli::matrix
