// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "describe.hpp"
#include "json_output.hpp"
#include "output.hpp"
#include "support/table.hpp"

namespace gpushm::cli {

namespace {

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

void show(const segment_info& info) {
  print_line(info.name);
  print(app::fields_text(
      {{"size", exact_size_text(info.size_bytes)},
       {"allocated", exact_size_text(info.allocated_bytes)},
       {"chunks", std::to_string(info.chunks)},
       {"device", device_text(info.device)},
       {"backend", std::string(to_string(info.backend))},
       {"lifetime", std::string(to_string(info.lifetime))},
       {"state", std::string(to_string(info.state))},
       {"published", yes_no(info.published)},
       {"leases", std::to_string(info.leases)},
       {"generation", std::to_string(info.generation)},
       {"metadata", exact_size_text(info.metadata_bytes)},
       {"creator uid", std::to_string(info.creator_uid)},
       {"creator pid", info.creator_pid == 0 ? "unknown" : std::to_string(info.creator_pid)},
       {"creator alive", yes_no(info.creator_alive)}},
      2));
}

}  // namespace

int run_stat(const stat_arguments& arguments) {
  client broker = connect(arguments.connection);
  const segment_info info = broker.stat(arguments.name);
  if (arguments.connection.json) {
    print_json(json{{"segment", to_json(info)}});
  } else {
    show(info);
  }
  return exit_ok;
}

}  // namespace gpushm::cli
