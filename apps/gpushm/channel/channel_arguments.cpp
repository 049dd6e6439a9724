// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/channel_arguments.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "apps/gpushm/channel/commands.hpp"
#include "apps/gpushm/options.hpp"
#include "gpushm/channel.h"

namespace gpushm::cli {

namespace {

constexpr const char* devices = "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>";

/// Adds `gpushm channel NAME`: `add` declares its options.
template <typename Arguments>
void add_command_with_name(CLI::App& channel,
                           request& parsed,
                           const char* command,
                           const char* description,
                           void (*add)(CLI::App&, Arguments&),
                           int (*run)(const Arguments&)) {
  // The parser keeps references to the members that it fills.
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* app = channel.add_subcommand(command, description);
  app->footer("");
  app->add_option("NAME", arguments->name, "Name of the channel")->required()->type_name("");
  add(*app, *arguments);
  add_connection(*app, arguments->connection);
  app->callback([&parsed, arguments, run] {
    parsed.run = [arguments, run] { return run(*arguments); };
    parsed.json = arguments->connection.json;
  });
}

std::uint32_t slots_in(const std::string& text) {
  constexpr const char* expected = "a number from 1 to 1024";
  static_assert(GPUSHM_MAX_CHANNEL_SLOTS == 1024);
  const auto value = parse_number<std::uint32_t>("--slots", text, 10, expected);
  if (value == 0 || value > GPUSHM_MAX_CHANNEL_SLOTS) {
    refuse("--slots", text, expected);
  }
  return value;
}

std::uint32_t up_to(const std::string& option, const std::string& text, std::uint32_t most) {
  const std::string expected = "a number from 1 to " + std::to_string(most);
  const auto value = parse_number<std::uint32_t>(option, text, 10, expected.c_str());
  if (value == 0 || value > most) {
    refuse(option, text, expected);
  }
  return value;
}

std::uint64_t slot_size(std::uint64_t bytes) {
  constexpr std::uint64_t most = std::uint64_t{1} << 46U;
  if (bytes == 0 || bytes > most) {
    refuse("--slot-size", std::to_string(bytes), "from 1 byte to 64 TiB");
  }
  return bytes;
}

double rate_in(const std::string& text) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || !(value >= 1e-3) ||
      value > 1e9) {
    refuse("--rate", text, "a number of items in a second, from 0.001 to 1e9");
  }
  return value;
}

void add_items(CLI::App& app, const std::string& description, std::optional<std::uint64_t>& into) {
  add_text(app, "--count", "N", description, [&into](const std::string& text) {
    constexpr const char* expected = "a number of items, from 1";
    into = parse_number<std::uint64_t>("--count", text, 10, expected);
    if (*into == 0) {
      refuse("--count", text, expected);
    }
  });
}

void add_create(CLI::App& app, channel_create_arguments& out) {
  add_text(app, "--slots", "N", "Number of slots, 1 to 1024 (default: 4)", [&](const auto& text) {
    out.slots = slots_in(text);
  });
  add_size(app, "--slot-size", "Size of each slot, such as 4MiB", [&](std::uint64_t bytes) {
    out.slot_bytes = slot_size(bytes);
  })->required();
  add_device(app, "--device", devices, out.device);
  app.add_flag("--huge-pages", out.huge_pages, "Allocate host memory in 2 MiB pages");
}

void add_pub(CLI::App& app, channel_pub_arguments& out) {
  add_text(app,
           "--slots",
           "N",
           "Number of slots, 1 to 1024 (default: those of the channel, else 4)",
           [&](const std::string& text) { out.slots = slots_in(text); });
  add_size(app,
           "--slot-size",
           "Size of each slot (default: that of the channel, else 1MiB)",
           [&](std::uint64_t bytes) { out.slot_bytes = slot_size(bytes); });
  add_device(app, "--device", devices, out.device);
  auto* from =
      app.add_option(
             "--from", out.from, "Publish this file, one slot's bytes an item; -: standard input")
          ->type_name("FILE");
  app.add_flag("--pattern", out.pattern, "Publish pseudo-random bytes (default)")->excludes(from);
  app.add_flag("--loop", out.loop, "Publish the file again and again")->needs(from);
  add_text(app,
           "--rate",
           "R",
           "Items in a second (default: as fast as possible)",
           [&](const std::string& text) { out.rate = rate_in(text); });
  add_items(app, "End after this many items", out.count);
  add_text(app,
           "--wait-for-consumers",
           "K",
           "Begin when this many consumers have joined, 1 to 64",
           [&](const std::string& text) {
             out.consumers = up_to("--wait-for-consumers", text, GPUSHM_MAX_CHANNEL_CONSUMERS);
           });
  add_duration(app, "--timeout", "How long to wait for them (default: 30s)", [&](auto value) {
    out.timeout = value;
  });
  add_text(app, "--corrupt", "N", "Damage its Nth item (tests only)", [&](const std::string& text) {
    out.corrupt = parse_number<std::uint64_t>("--corrupt", text, 10, "a number");
  })->group("");
}

void add_sub(CLI::App& app, channel_sub_arguments& out) {
  auto* latest = app.add_flag_callback(
      "--latest",
      [&out] { out.mode = consumer_mode::latest; },
      "Get the newest item, and skip others (default: each item, in order)");
  app.add_flag_callback(
         "--share",
         [&out] { out.mode = consumer_mode::share; },
         "Share the items with the other consumers that do: each is for one of them")
      ->excludes(latest);
  add_text(
      app,
      "--held",
      "K",
      "Hold this many items at a time, 1 to 16 (default: 1; with --share 2)",
      [&](const std::string& text) { out.held = up_to("--held", text, GPUSHM_MAX_HELD_ITEMS); });
  add_device(app, "--device", "GPU that reads (default: the memory's GPU)", out.device);
  add_items(app, "End after this many items", out.count);
  add_out(app, "Write the items' bytes to this file", out.output, out.connection.json);
  add_duration(app, "--delay", "Hold each item this long: a slow consumer", [&](auto value) {
    out.delay = value;
  });
  add_duration(
      app, "--timeout", "How long to wait for the channel (default: 30s)", [&](auto value) {
        out.timeout = value;
      });
  add_duration(app,
               "--resume",
               "How long to wait for a new producer after the death of one (default: 0, fail)",
               [&](auto value) { out.resume = value; });
}

}  // namespace

void add_channel(CLI::App& root, request& parsed) {
  CLI::App* channel =
      root.add_subcommand("channel", "Try a channel: a ring of slots from one process to several");
  channel->footer("");
  channel->require_subcommand(1);
  add_command_with_name(*channel,
                        parsed,
                        "create",
                        "Make a channel's memory, which outlives its producers",
                        add_create,
                        run_channel_create);
  add_command_with_name(
      *channel, parsed, "pub", "Publish items: a pattern, or a file", add_pub, run_channel_pub);
  add_command_with_name(*channel,
                        parsed,
                        "sub",
                        "Read items, check every byte, and measure rate and latency",
                        add_sub,
                        run_channel_sub);
  add_command_with_name<channel_stat_arguments>(
      *channel,
      parsed,
      "stat",
      "Show a channel's producer, slots and consumers",
      [](CLI::App& /*no more options*/, channel_stat_arguments& /*of them*/) {},
      run_channel_stat);
}

}  // namespace gpushm::cli
