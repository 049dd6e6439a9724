// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/published.hpp"

#include <algorithm>

namespace gpushm::cli::matrix {

namespace {

constexpr std::string_view context = "invalid device context";
constexpr std::string_view argument = "invalid argument";

std::vector<published_table> make_tables() {
  return {{"T1",
           "two pods, a shared volume, one GPU each from the device plugin",
           gpu_choice::one_each,
           {{true, true, false, true, {}},
            {false, true, false, true, {}},
            {true, false, false, true, context},
            {true, true, false, false, argument},
            {false, false, false, true, context},
            {false, true, false, false, argument},
            {true, false, false, false, context},
            {false, false, false, false, context}}},
          {"T2",
           "two pods, one ResourceClaim with two GPUs for both",
           gpu_choice::same_set,
           {{true, true, false, true, {}},
            {false, true, false, true, {}},
            {true, false, false, true, context},
            {true, true, false, false, {}},
            {false, false, false, true, context},
            {false, true, false, false, {}},
            {true, false, false, false, context},
            {false, false, false, false, context}}},
          {"T3",
           "one pod with two containers, one ResourceClaim with two GPUs",
           gpu_choice::same_set,
           {{true, true, false, true, {}},
            {false, true, false, true, {}},
            {true, false, false, true, context},
            {true, true, false, false, {}},
            {true, false, true, true, {}},
            {true, false, true, false, {}},
            {false, false, false, true, context},
            {false, false, true, false, {}},
            {false, false, false, false, context}}}};
}

}  // namespace

const std::vector<published_table>& published_tables() {
  static const std::vector<published_table> tables = make_tables();
  return tables;
}

int row_number_of(const published_table& table, const published_row& published) {
  row wanted;
  wanted.host_ipc = published.host_ipc;
  wanted.host_pid = published.host_pid;
  wanted.share_processes = published.share_processes;
  wanted.privileged = published.privileged;
  wanted.gpus = table.gpus;
  wanted.pids = wanted.one_pid_namespace() ? pid_values::different : pid_values::equal;
  static const std::vector<row> rows = all_rows();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const row& each) {
    wanted.number = each.number;
    return each == wanted;
  });
  return found->number;
}

std::string runtime_words(std::string_view failure) {
  if (failure == "CUDA_ERROR_INVALID_CONTEXT (201)") {
    return std::string(context);
  }
  if (failure == "CUDA_ERROR_INVALID_VALUE (1)") {
    return std::string(argument);
  }
  return std::string(failure);
}

}  // namespace gpushm::cli::matrix
