// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"

namespace gpushm::cli {

int run_list(const list_arguments& arguments) {
  client broker = connect(arguments.connection);
  const std::vector<segment_info> segments = broker.list(arguments.prefix);
  if (arguments.connection.json) {
    const broker_info about = broker.broker();
    json document{
        {"domain", about.domain}, {"socket", about.socket_path}, {"segments", json::array()}};
    for (const segment_info& info : segments) {
      document["segments"].push_back(to_json(info));
    }
    print_json(document);
  } else if (arguments.names_only) {
    for (const segment_info& info : segments) {
      print_line(info.name);
    }
  } else if (segments.empty()) {
    const broker_info about = broker.broker();
    note(fmt::format(
        "no segments{} in domain \"{}\" at {}",
        arguments.prefix.empty() ? "" : fmt::format(" with prefix \"{}\"", arguments.prefix),
        about.domain,
        about.socket_path));
  } else {
    print(segments_text(segments));
  }
  return exit_ok;
}

}  // namespace gpushm::cli
