// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/rows.hpp"

#include <array>

namespace gpushm::cli::matrix {

namespace {

struct host_setting {
  bool ipc;
  bool pid;
  bool privileged;
};
constexpr std::array<host_setting, 8> published_order{{{true, true, true},
                                                       {false, true, true},
                                                       {true, false, true},
                                                       {true, true, false},
                                                       {false, false, true},
                                                       {false, true, false},
                                                       {true, false, false},
                                                       {false, false, false}}};

}  // namespace

std::string_view to_string(gpu_choice value) noexcept {
  return value == gpu_choice::one_each ? "one each" : "same set";
}

std::string_view to_string(pid_values value) noexcept {
  return value == pid_values::equal ? "equal" : "different";
}

std::vector<row> all_rows() {
  std::vector<row> rows;
  for (const gpu_choice gpus : {gpu_choice::one_each, gpu_choice::same_set}) {
    for (const bool share : {false, true}) {
      for (const host_setting& host : published_order) {
        for (const pid_values pids : {pid_values::equal, pid_values::different}) {
          rows.push_back({static_cast<int>(rows.size()) + 1,
                          host.ipc,
                          host.pid,
                          share,
                          host.privileged,
                          gpus,
                          pids});
        }
      }
    }
  }
  return rows;
}

std::string why_not_applicable(const row& setting) {
  if (setting.host_pid && setting.share_processes) {
    return "Kubernetes refuses a pod with both hostPID and shareProcessNamespace";
  }
  if (setting.one_pid_namespace() && setting.pids == pid_values::equal) {
    return "two processes of one PID namespace never have the same PID";
  }
  return {};
}

}  // namespace gpushm::cli::matrix
