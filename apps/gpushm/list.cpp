// SPDX-License-Identifier: Apache-2.0
#include "base/size_text.hpp"
#include "commands.hpp"
#include "json_output.hpp"
#include "output.hpp"
#include "support/table.hpp"

namespace gpushm::cli {

namespace {

std::string creator_text(const segment_info& info) {
  std::string text = "uid " + std::to_string(info.creator_uid);
  if (info.creator_pid != 0) {
    text += ", pid " + std::to_string(info.creator_pid);
  }
  return info.creator_alive ? text : text + " (gone)";
}

void show_table(const std::vector<segment_info>& segments) {
  using align = app::table::align;
  app::table table({{"NAME"},
                    {"SIZE", align::right},
                    {"DEVICE"},
                    {"LIFETIME"},
                    {"LEASES", align::right},
                    {"STATE"},
                    {"CREATOR"}});
  for (const segment_info& info : segments) {
    // The first digits of a UUID tell the GPUs of a node apart; `stat` shows it whole.
    table.add({info.name,
               base::size_text(info.size_bytes),
               info.device.text().substr(0, 12),
               std::string(to_string(info.lifetime)),
               std::to_string(info.leases),
               info.published ? std::string(to_string(info.state)) : "unpublished",
               creator_text(info)});
  }
  print(table.text());
}

}  // namespace

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
    note("no segments" +
         (arguments.prefix.empty() ? "" : " whose names start with \"" + arguments.prefix + "\"") +
         " in domain \"" + about.domain + "\" at " + about.socket_path);
  } else {
    show_table(segments);
  }
  return exit_ok;
}

}  // namespace gpushm::cli
