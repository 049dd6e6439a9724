// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>

#include "apps/gpushm/channel/channel_options.hpp"
#include "apps/gpushm/channel/commands.hpp"
#include "apps/gpushm/channel/shape.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

namespace {

struct channel_stat_arguments {
  connection_arguments connection;
  std::string name;
};

void add_channel_stat_arguments(CLI::App& app, channel_stat_arguments& arguments) {
  add_channel_name(app, arguments.name);
  add_connection(app, arguments.connection);
}

/// What is known of a channel; nothing where a part does not exist.
struct found_channel {
  std::optional<segment_info> memory;
  std::optional<channel_status> status;
  std::optional<channel_shape> shape;
};

found_channel find(client& broker, const std::string& name) {
  found_channel channel;
  try {
    channel.status = channel_status::read(broker, name);
  } catch (const error& why) {
    if (why.code() != errc::no_such_segment) {
      throw;
    }
  }
  try {
    channel.memory = broker.stat(name);
  } catch (const error& why) {
    if (why.code() != errc::no_such_segment || !channel.status) {
      throw;
    }
  }
  channel.shape = channel.status ? channel_shape{channel.status->slots, channel.status->slot_bytes}
                                 : known_shape(broker, name);
  if (!channel.shape) {
    throw error(errc::no_such_segment,
                "stat channel",
                name,
                "this segment is not a channel",
                "see gpushm stat");
  }
  return channel;
}

std::string mode_text(consumer_mode mode) {
  switch (mode) {
    case consumer_mode::block:
      return "block";
    case consumer_mode::latest:
      return "latest";
    case consumer_mode::share:
      return "share";
  }
  return fmt::format("mode {}", static_cast<unsigned>(mode));
}

std::string process_text(std::uint32_t uid, std::int32_t pid) {
  return fmt::format("uid {}{}", uid, pid == 0 ? "" : fmt::format(", pid {}", pid));
}

/// Returns nullopt if the value has no meaning.
std::optional<std::uint64_t> lag_of(const channel_consumer_status& consumer) {
  const bool holds_none = consumer.mode == consumer_mode::latest && consumer.holds == 0;
  return consumer.is_admitted && !holds_none ? std::optional(consumer.lag) : std::nullopt;
}

std::string producer_text(const std::optional<channel_status>& status) {
  if (!status) {
    return "none";
  }
  std::string who = process_text(status->producer_uid, status->producer_pid);
  if (status->has_producer) {
    return who;
  }
  return fmt::format("none; {} {}", who, status->is_closed ? "has closed the channel" : "has died");
}

void print_text(const std::string& name, const found_channel& channel) {
  print(base::printable(name) + "\n");
  fields lines{{"slots", shape_text(*channel.shape)},
               {"device", channel.memory ? device_text(channel.memory->device) : "unknown"},
               {"producer", producer_text(channel.status)}};
  if (!channel.status) {
    print(base::fields_text(lines, 2));
    return;
  }
  const channel_status& status = *channel.status;
  lines.emplace_back("announced", std::to_string(status.announced));
  lines.emplace_back("published", std::to_string(status.published));
  lines.emplace_back("writer", writer_text(status.is_writable));
  lines.emplace_back("consumers", std::to_string(status.consumers.size()));
  print(base::fields_text(lines, 2));
  if (status.consumers.empty()) {
    return;
  }
  using align = base::table::align;
  base::table table({{"CONSUMER"},
                     {"MODE"},
                     {"START", align::right},
                     {"TAKEN", align::right},
                     {"RELEASED", align::right},
                     {"HOLDS", align::right},
                     {"LAG", align::right}});
  const auto number = [](std::uint64_t value) {
    return value == 0 ? std::string("-") : std::to_string(value);
  };
  for (const channel_consumer_status& each : status.consumers) {
    const bool is_latest = each.mode == consumer_mode::latest;
    const auto lag = lag_of(each);
    table.add({process_text(each.uid, each.pid),
               mode_text(each.mode),
               each.is_admitted ? std::to_string(each.start) : "not admitted",
               number(each.taken),
               is_latest ? "-" : number(each.released),
               each.may_hold == 0 ? std::to_string(each.holds)
                                  : fmt::format("{} of {}", each.holds, each.may_hold),
               lag ? std::to_string(*lag) : "-"});
  }
  print("\n" + table.text());
}

json consumer_json(const channel_consumer_status& status) {
  const bool is_latest = status.mode == consumer_mode::latest;
  return {{"uid", status.uid},
          {"pid", status.pid},
          {"mode", mode_text(status.mode)},
          {"admitted", status.is_admitted},
          {"start", status.is_admitted ? json(status.start) : json(nullptr)},
          {"taken", status.taken == 0 ? json(nullptr) : json(status.taken)},
          {"released", is_latest || status.released == 0 ? json(nullptr) : json(status.released)},
          {"holds", status.holds},
          {"may_hold", status.may_hold == 0 ? json(nullptr) : json(status.may_hold)},
          {"lag", json_or_null(lag_of(status))}};
}

json to_json_document(const std::string& name, const found_channel& channel) {
  json document{{"name", name},
                {"slots", channel.shape->slots},
                {"slot_bytes", channel.shape->slot_bytes},
                {"device", channel.memory ? to_json(channel.memory->device) : json(nullptr)},
                {"producer", nullptr},
                {"announced", nullptr},
                {"published", nullptr},
                {"consumers", json::array()}};
  if (!channel.status) {
    return document;
  }
  const channel_status& status = *channel.status;
  document["producer"] = {{"uid", status.producer_uid},
                          {"pid", status.producer_pid},
                          {"state",
                           status.has_producer ? "live"
                           : status.is_closed  ? "closed"
                                               : "died"},
                          {"writer", status.is_writable ? "advisory" : "enforced"}};
  document["announced"] = status.announced;
  document["published"] = status.published;
  for (const channel_consumer_status& each : status.consumers) {
    document["consumers"].push_back(consumer_json(each));
  }
  return document;
}

int run_channel_stat(const channel_stat_arguments& arguments) {
  client broker = connect(arguments.connection);
  const found_channel channel =
      with_hint(arguments.connection, arguments.name, [&] { return find(broker, arguments.name); });
  if (arguments.connection.json) {
    print_json(json{{"channel", to_json_document(arguments.name, channel)}});
  } else {
    print_text(arguments.name, channel);
  }
  return exit_ok;
}

}  // namespace

void add_channel_stat(command_list& commands) {
  add_command<channel_stat_arguments>(commands,
                                      "stat",
                                      "Show a channel's producer, slots and consumers",
                                      add_channel_stat_arguments,
                                      run_channel_stat);
}

}  // namespace gpushm::cli
