// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "apps/gpushm/weights/commands.hpp"
#include "apps/gpushm/weights/version_names.hpp"
#include "base/segments/versioned_names.hpp"
#include "gpushm/client.hpp"
#include "gpushm/versions.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* default_pin = "pinned";

/// The number of a version, or null.
json number_or_null(std::uint64_t number) {
  return number == 0 ? json(nullptr) : json(number);
}

void add_base_name(CLI::App& app, std::string& name) {
  app.add_option("NAME", name, "Name that has the versions")->required()->type_name("");
}

// ---- rollback ----

struct rollback_arguments {
  connection_arguments connection;
  std::string name;
  std::string alias = std::string(base::latest_alias);
};

void add_rollback_arguments(CLI::App& app, rollback_arguments& arguments) {
  add_base_name(app, arguments.name);
  app.add_option("ALIAS", arguments.alias, "Alias to move (default: latest)")->type_name("");
  add_connection(app, arguments.connection);
}

/// From which version an alias is moved to which one.
struct rollback_step {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
};

/// Throws `error` (no_such_segment): nothing can be rolled back.
rollback_step rollback_step_for(client& broker, const rollback_arguments& arguments) {
  constexpr const char* operation = "roll back";
  const std::vector<version_info> versions = list_versions(broker, arguments.name);
  if (versions.empty()) {
    throw_no_versions(broker, operation, arguments.name);
  }
  const std::string alias = alias_text(arguments.name, arguments.alias);
  const std::uint64_t from = target_of(versions, arguments.alias);
  if (from == 0) {
    throw error(errc::no_such_segment,
                operation,
                alias,
                "this alias refers to no version",
                fmt::format("`gpushm weights ls {}` shows the aliases", arguments.name));
  }
  const auto lower = std::find_if(versions.begin(), versions.end(), [&](const version_info& each) {
    return each.number < from && each.state == version_state::published && !each.withdrawn;
  });
  if (lower == versions.end()) {
    throw error(errc::no_such_segment,
                operation,
                alias,
                fmt::format("it refers to version {}, and no lower version is published and not "
                            "withdrawn",
                            from),
                "publish the next version; `keep` of create_version says how many stay for a "
                "rollback");
  }
  return {from, lower->number};
}

/// Withdraws the version that `latest` refers to. Returns what it refers to from now on. Throws
/// `error` if another process has published a version meanwhile, or removed the one below.
std::uint64_t withdraw_latest(client& broker, const std::string& name, std::uint64_t number) {
  withdraw_version(broker, name, number);
  const std::string alias = alias_text(name, base::latest_alias);
  std::uint64_t now = 0;
  try {
    now = resolve_version(broker, alias);
  } catch (const error& why) {
    if (why.code() != errc::no_such_segment) {
      throw;
    }
    throw error(why.code(),
                "roll back",
                alias,
                fmt::format("version {} is withdrawn, and the version below it has ended meanwhile",
                            number),
                "publish the next version");
  }
  if (now > number) {
    throw error(errc::gone_or_replaced,
                "roll back",
                alias,
                fmt::format("version {} is withdrawn, but version {}, which was published "
                            "meanwhile, is the newest one now",
                            number,
                            now),
                "roll back again if that one is to be withdrawn, too");
  }
  return now;
}

int run_rollback(const rollback_arguments& arguments) {
  check_base_argument("roll back", arguments.name);
  check_alias_argument("roll back", arguments.alias);
  client broker = connect(arguments.connection);
  rollback_step step = rollback_step_for(broker, arguments);
  const bool is_latest = arguments.alias == base::latest_alias;
  if (is_latest) {
    step.to = withdraw_latest(broker, arguments.name, step.from);
  } else {
    move_alias(broker, arguments.name, arguments.alias, step.to);
  }
  if (arguments.connection.json) {
    print_json(json{{"rolled_back",
                     {{"name", arguments.name},
                      {"alias", arguments.alias},
                      {"from", step.from},
                      {"to", step.to},
                      {"withdrawn", is_latest}}}});
  } else {
    print_line(fmt::format("rolled back \"{}\" from {} to {}{}",
                           alias_text(arguments.name, arguments.alias),
                           step.from,
                           step.to,
                           is_latest ? fmt::format("; version {} is withdrawn", step.from) : ""));
  }
  return exit_ok;
}

// ---- pin and unpin ----

struct pin_arguments {
  connection_arguments connection;
  std::string version;
  std::string alias = default_pin;
};

void add_pin_arguments(CLI::App& app, pin_arguments& arguments) {
  app.add_option("VERSION", arguments.version, "NAME@NUMBER or NAME@ALIAS")
      ->required()
      ->type_name("");
  app.add_option("ALIAS", arguments.alias, "Alias to create or move (default: pinned)")
      ->type_name("");
  add_connection(app, arguments.connection);
}

int run_pin(const pin_arguments& arguments) {
  constexpr const char* operation = "pin";
  const base::versioned_name version = parse_version_argument(operation, arguments.version);
  if (!version.part.empty()) {
    throw usage_error(
        errc::invalid_argument,
        operation,
        arguments.version,
        "an alias refers to a whole version, not to a part",
        fmt::format("pass \"{}\"",
                    base::text_of({version.base, version.number, version.alias, {}})));
  }
  check_alias_argument(operation, arguments.alias);
  if (arguments.alias == base::latest_alias) {
    throw usage_error(errc::invalid_argument,
                      operation,
                      arguments.version,
                      "the alias latest follows publications by itself",
                      "choose another alias; `gpushm weights rollback` withdraws the newest "
                      "version");
  }
  client broker = connect(arguments.connection);
  const std::string name(version.base);
  const std::uint64_t from = target_of(list_versions(broker, name), arguments.alias);
  const std::uint64_t number = with_hint(arguments.connection, arguments.version, [&] {
    const std::uint64_t wanted =
        version.number != 0 ? version.number : resolve_version(broker, arguments.version);
    move_alias(broker, name, arguments.alias, wanted);
    return wanted;
  });
  if (arguments.connection.json) {
    print_json(json{{"pinned",
                     {{"name", name},
                      {"alias", arguments.alias},
                      {"from", number_or_null(from)},
                      {"to", number}}}});
  } else {
    print_line(fmt::format("pinned \"{}\" to {}{}",
                           alias_text(name, arguments.alias),
                           number,
                           from == 0 || from == number ? "" : fmt::format(" (before: {})", from)));
  }
  return exit_ok;
}

struct unpin_arguments {
  connection_arguments connection;
  std::string name;
  std::string alias = default_pin;
};

void add_unpin_arguments(CLI::App& app, unpin_arguments& arguments) {
  add_base_name(app, arguments.name);
  app.add_option("ALIAS", arguments.alias, "Alias to remove (default: pinned)")->type_name("");
  add_connection(app, arguments.connection);
}

int run_unpin(const unpin_arguments& arguments) {
  check_base_argument("unpin", arguments.name);
  check_alias_argument("unpin", arguments.alias);
  client broker = connect(arguments.connection);
  const std::uint64_t from = target_of(list_versions(broker, arguments.name), arguments.alias);
  remove_alias(broker, arguments.name, arguments.alias);
  if (arguments.connection.json) {
    print_json(json{
        {"unpinned",
         {{"name", arguments.name}, {"alias", arguments.alias}, {"from", number_or_null(from)}}}});
  } else {
    print_line(fmt::format("unpinned \"{}\"{}",
                           alias_text(arguments.name, arguments.alias),
                           from == 0 ? "" : fmt::format(" from {}", from)));
  }
  return exit_ok;
}

}  // namespace

void add_weights_rollback(command_list& commands) {
  add_command<rollback_arguments>(commands,
                                  "rollback",
                                  "Move an alias to the published version below; latest by "
                                  "withdrawing the newest version",
                                  add_rollback_arguments,
                                  run_rollback);
}

void add_weights_pin(command_list& commands) {
  add_command<pin_arguments>(commands,
                             "pin",
                             "Keep a version under an alias, which is created or moved",
                             add_pin_arguments,
                             run_pin);
}

void add_weights_unpin(command_list& commands) {
  add_command<unpin_arguments>(commands,
                               "unpin",
                               "Remove an alias; its version ends when nothing else keeps it",
                               add_unpin_arguments,
                               run_unpin);
}

}  // namespace gpushm::cli
