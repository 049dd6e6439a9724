// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "domains/protocol/usage.hpp"

namespace gpushm::cli {

/// For a reply of gpushm-brokerd on its private socket.
inline constexpr std::chrono::milliseconds operator_timeout{15'000};

/// "45s", "12m", "7h", "3d".
[[nodiscard]] std::string age_text(std::chrono::milliseconds age);
/// Bytes as a size, other resources as a number.
[[nodiscard]] std::string amount_text(const domains::usage& row, std::uint64_t amount);
[[nodiscard]] json to_json(const domains::usage& row);

struct list_arguments {
  connection_arguments connection;
  std::string prefix;
  bool names_only = false;
  bool all = false;  ///< also the library's own segments; with `ipc`, each registration
  bool ipc = false;  ///< who exports to unchanged programs, in place of segments
  bool by_principal = false;
  node_arguments node;  ///< if by_principal
  std::string pods;     ///< the file of `pod_names`; empty: none
};
/// `gpushm ls --by principal`.
[[nodiscard]] int run_list_by_principal(const list_arguments& arguments);

struct remove_arguments {
  connection_arguments connection;
  std::vector<std::string> names;
  bool unheld = false;    ///< persistent segments that no process has open
  std::string principal;  ///< only those of this one; empty: of all
  bool dry_run = false;
  node_arguments node;  ///< if unheld
};
/// `gpushm rm --unheld`.
[[nodiscard]] int run_remove_unheld(const remove_arguments& arguments);

struct stat_arguments {
  connection_arguments connection;
  std::string name;
  bool broker = false;  ///< gpushm-brokerd in place of a segment
  node_arguments node;  ///< of `broker`; an empty domain: all
};
/// `gpushm stat --broker`.
[[nodiscard]] int run_broker_stat(const stat_arguments& arguments);

}  // namespace gpushm::cli
