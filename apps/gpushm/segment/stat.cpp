// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "gpushm/client.hpp"
#include "gpushm/timeline.hpp"

namespace gpushm::cli {

namespace {

void add_stat_arguments(CLI::App& app, stat_arguments& arguments) {
  auto* const name = app.add_option("NAME", arguments.name, "Name of the segment")->type_name("");
  auto* const node =
      app.add_flag("--broker",
                   arguments.broker,
                   "For operators, in place of NAME: gpushm-brokerd, its budgets beside "
                   "their limits, and who uses them")
          ->excludes(name);
  arguments.node.domain.clear();
  for (CLI::Option* const each : add_node(app, arguments.node)) {
    each->needs(node);
  }
  add_connection(app, arguments.connection);
}

/// What a timeline's word says.
struct timeline_facts {
  std::uint64_t value = 0;
  bool ended = false;
  bool is_writable = false;
};

/// Returns nullopt if it is not a timeline, or can no longer be opened.
std::optional<timeline_facts> read_timeline(client& broker, const segment_info& info) {
  if (info.backend != backend::timeline || !info.published) {
    return std::nullopt;
  }
  try {
    const timeline opened = timeline::open(broker, info.name, std::chrono::milliseconds(0));
    timeline_facts facts;
    facts.value = opened.value();
    facts.is_writable = opened.is_writable();
    try {
      static_cast<void>(opened.try_wait(max_timeline_value));
    } catch (const error& why) {
      facts.ended = why.code() == errc::peer_died;
    }
    return facts;
  } catch (const error& why) {
    note(why.what());
    return std::nullopt;
  }
}

fields fields_of(const timeline_facts& facts) {
  return {{"value", std::to_string(facts.value) + (facts.ended ? " (ended)" : "")},
          {"writer", writer_text(facts.is_writable)}};
}

json to_json(const timeline_facts& facts) {
  return {{"value", facts.value},
          {"ended", facts.ended},
          {"writer", facts.is_writable ? "advisory" : "enforced"}};
}

int run_stat(const stat_arguments& arguments) {
  if (arguments.broker) {
    return run_broker_stat(arguments);
  }
  if (arguments.name.empty()) {
    throw usage_error(errc::invalid_argument,
                      "stat",
                      {},
                      "there is no name of a segment",
                      "name one, or use --broker");
  }
  client broker = connect(arguments.connection);
  const segment_info info =
      with_hint(arguments.connection, arguments.name, [&] { return broker.stat(arguments.name); });
  const auto facts = read_timeline(broker, info);
  if (arguments.connection.json) {
    print_json(json{{"segment", cli::to_json(info)},
                    {"timeline", facts ? to_json(*facts) : json(nullptr)}});
  } else {
    print(segment_text(info, facts ? fields_of(*facts) : fields{}));
  }
  return exit_ok;
}

}  // namespace

void add_stat(command_list& commands) {
  add_command<stat_arguments>(commands,
                              "stat",
                              "Show the broker's information about a segment or a timeline",
                              add_stat_arguments,
                              run_stat);
}

}  // namespace gpushm::cli
