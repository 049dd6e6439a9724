// SPDX-License-Identifier: Apache-2.0
// `gpushm quotas`: what the levels of a domain's budget use, and the rules that limit them.
#include <cerrno>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/file_error.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "base/files/file.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "domains/protocol/private_socket.hpp"

namespace gpushm::cli {

namespace {

struct quotas_arguments {
  std::string run_dir = "/run/gpushm";
  std::string domain = "default";
  std::string set;  ///< file of rules; empty: only read
  bool json = false;
};

void add_quotas_arguments(CLI::App& app, quotas_arguments& arguments) {
  app.add_option("--domain", arguments.domain, "Name of the domain (default: default)")
      ->type_name("NAME");
  app.add_option("--set", arguments.set, "File of rules that replace those of the node first")
      ->type_name("FILE");
  add_run_dir(app, arguments.run_dir);
  add_json(app, arguments.json);
}

/// More than gpushm-brokerd takes, so that it refuses a longer one.
constexpr std::size_t max_file_bytes = 40'000;

std::string table_of(const domains::usages& used) {
  using align = base::table::align;
  base::table table(
      {{"LEVEL"}, {"NAME"}, {"RESOURCE"}, {"USED", align::right}, {"LIMIT", align::right}});
  for (const domains::usage& row : used.all) {
    table.add({row.level,
               row.name,
               row.gpu.empty() ? row.resource : row.gpu,
               amount_text(row, row.used),
               row.limit == 0 ? "-" : amount_text(row, row.limit)});
  }
  return table.text();
}

void set(const domains::private_socket& broker, const std::string& path) {
  errno = 0;
  const auto text = base::read_small_file(path, max_file_bytes);
  if (!text) {
    throw_file_error(errno, "set quotas", path, "open");
  }
  broker.set_quotas(*text, operator_timeout);
}

}  // namespace

std::string amount_text(const domains::usage& row, std::uint64_t amount) {
  return row.resource.ends_with("_bytes") ? base::size_text(amount) : std::to_string(amount);
}

json to_json(const domains::usage& row) {
  return {{"level", row.level},
          {"name", row.name},
          {"resource", row.resource},
          {"gpu", row.gpu.empty() ? json(nullptr) : json(row.gpu)},
          {"used", row.used},
          {"limit", row.limit == 0 ? json(nullptr) : json(row.limit)}};
}

namespace {

int run_quotas(const quotas_arguments& arguments) {
  const domains::private_socket broker(arguments.run_dir);
  if (!arguments.set.empty()) {
    set(broker, arguments.set);
  }
  const domains::usages used = broker.read_usage(arguments.domain, operator_timeout);
  if (arguments.json) {
    json document{{"domain", arguments.domain}, {"usage", json::array()}, {"quotas", used.quotas}};
    for (const domains::usage& row : used.all) {
      document["usage"].push_back(to_json(row));
    }
    print_json(document);
    return exit_ok;
  }
  print(table_of(used));
  if (!used.quotas.empty()) {
    print("\n" + base::printable_lines(used.quotas));
    print(used.quotas.ends_with('\n') ? "" : "\n");
  }
  return exit_ok;
}

}  // namespace

void add_quotas(command_list& commands) {
  add_command<quotas_arguments>(
      commands,
      "quotas",
      "Show what the members of a domain of gpushm-brokerd use, and set quotas",
      add_quotas_arguments,
      run_quotas);
}

}  // namespace gpushm::cli
