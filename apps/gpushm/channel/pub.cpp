// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <poll.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>
#include <random>
#include <string>

#include "apps/gpushm/channel/channel_options.hpp"
#include "apps/gpushm/channel/commands.hpp"
#include "apps/gpushm/channel/item_source.hpp"
#include "apps/gpushm/channel/live_line.hpp"
#include "apps/gpushm/channel/rates.hpp"
#include "apps/gpushm/channel/shape.hpp"
#include "apps/gpushm/channel/slot_memory.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/channel.h"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

namespace {

struct channel_pub_arguments {
  connection_arguments connection;
  std::string name;
  std::optional<std::uint32_t> slots;  ///< unset: those of the channel, else the default
  std::optional<std::uint64_t> slot_bytes;
  std::string device = "auto";
  std::string from;  ///< a file, or "-"; empty: a pattern
  bool pattern = false;
  bool loop = false;
  std::optional<double> rate;  ///< items in a second
  std::optional<std::uint64_t> count;
  std::optional<std::uint32_t> consumers;     ///< to wait for
  std::chrono::milliseconds timeout{30'000};  ///< of the wait for `consumers`
  std::optional<std::uint64_t> corrupt;  ///< which of its items it damages, from 1 (tests only)
};

double rate_in(const std::string& text) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || !(value >= 1e-3) ||
      value > 1e9) {
    refuse("--rate", text, "a number of items in a second, from 0.001 to 1e9");
  }
  return value;
}

void add_channel_pub_arguments(CLI::App& app, channel_pub_arguments& arguments) {
  add_channel_name(app, arguments.name);
  add_text(app,
           "--slots",
           "N",
           "Number of slots, 1 to 1024 (default: those of the channel, else 4)",
           [&](const std::string& text) { arguments.slots = slots_in(text); });
  add_size(app,
           "--slot-size",
           "Size of each slot (default: that of the channel, else 1MiB)",
           [&](std::uint64_t bytes) { arguments.slot_bytes = slot_size(bytes); });
  add_device(app, "--device", channel_devices, arguments.device);
  auto* from = app.add_option("--from",
                              arguments.from,
                              "Publish this file, one slot's bytes an item; -: standard input")
                   ->type_name("FILE");
  app.add_flag("--pattern", arguments.pattern, "Publish pseudo-random bytes (default)")
      ->excludes(from);
  app.add_flag("--loop", arguments.loop, "Publish the file again and again")->needs(from);
  add_text(app,
           "--rate",
           "R",
           "Items in a second (default: as fast as possible)",
           [&](const std::string& text) { arguments.rate = rate_in(text); });
  add_items(app, "End after this many items", arguments.count);
  add_text(app,
           "--wait-for-consumers",
           "K",
           "Begin when this many consumers have joined, 1 to 64",
           [&](const std::string& text) {
             arguments.consumers =
                 up_to("--wait-for-consumers", text, GPUSHM_MAX_CHANNEL_CONSUMERS);
           });
  add_duration(app, "--timeout", "How long to wait for them (default: 30s)", [&](auto value) {
    arguments.timeout = value;
  });
  add_text(app, "--corrupt", "N", "Damage its Nth item (tests only)", [&](const std::string& text) {
    arguments.corrupt = parse_number<std::uint64_t>("--corrupt", text, 10, "a number");
  })->group("");
  add_connection(app, arguments.connection);
}

using clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC
using std::chrono::milliseconds;

constexpr channel_shape usual_shape{4, std::uint64_t{1} << 20U};
/// How long one wait for a slot lasts: a signal is noticed after it.
constexpr milliseconds slice{50};
/// A producer that is later than this does not catch up.
constexpr std::chrono::seconds most_late{1};

double seconds_of(clock::duration value) {
  return std::chrono::duration<double>(value).count();
}

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32U | random();
}

/// The shape by the options, and by the channel for options that are not set.
channel_shape shape_for(client& broker, const channel_pub_arguments& arguments) {
  const auto known = known_shape(broker, arguments.name);
  const channel_shape usual = known.value_or(usual_shape);
  const channel_shape wanted{arguments.slots.value_or(usual.slots),
                             arguments.slot_bytes.value_or(usual.slot_bytes)};
  if (known && wanted != *known) {
    throw error(errc::size_mismatch,
                "publish on",
                arguments.name,
                fmt::format("the channel has {}, not {}", shape_text(*known), shape_text(wanted)),
                "leave out --slots and --slot-size, or remove the channel first: gpushm rm");
  }
  return wanted;
}

/// Times of items at a constant rate.
class pace {
 public:
  explicit pace(std::optional<double> rate) {
    if (rate) {
      interval_ = std::chrono::duration<double>(1 / *rate);
    }
  }
  /// Waits until the next item is due; false: `stop` was requested before.
  [[nodiscard]] bool wait(const app::stop_signal& stop) {
    if (!interval_) {
      return !stop.pending();
    }
    const auto due = start_ + std::chrono::duration_cast<clock::duration>(
                                  *interval_ * static_cast<double>(done_));
    ++done_;
    for (;;) {
      const auto left = due - clock::now();
      if (left < -most_late) {
        start_ = clock::now();
        done_ = 1;
      }
      if (left <= clock::duration(0)) {
        return !stop.pending();
      }
      const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
      const timespec timeout{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
      pollfd waiting{app::stop_signal::fd(), POLLIN, 0};
      if (::ppoll(&waiting, 1, &timeout, nullptr) > 0) {
        return false;
      }
    }
  }

 private:
  std::optional<std::chrono::duration<double>> interval_;
  clock::time_point start_ = clock::now();
  std::uint64_t done_ = 0;
};

channel_producer begin(const client& broker,
                       const channel_pub_arguments& arguments,
                       const channel_shape& shape) {
  channel_options options;
  options.slot_bytes = shape.slot_bytes;
  options.slots = shape.slots;
  options.device = arguments.device;
  try {
    return channel_producer::create(broker, arguments.name, options);
  } catch (const error& why) {
    throw why.in("publish on", arguments.name);
  }
}

class publisher {
 public:
  explicit publisher(const channel_pub_arguments& arguments)
      : arguments_(arguments),
        broker_(connect(arguments.connection)),
        shape_(shape_for(broker_, arguments)),
        source_(arguments.from, arguments.loop, random_number()),
        producer_(begin(broker_, arguments, shape_)),
        device_(broker_.stat(arguments.name).device),
        memory_(arguments.name, device_, arguments.device) {}

  void run() {
    show_begin();
    if (!await_consumers()) {
      ended_ = "signal";
    } else {
      start_ = clock::now();
      publish_all();
    }
    end_ = clock::now();
    const producer_stats last = producer_.stats();
    producer_.reset();  // before the output: consumers need not wait for it
    line_.clear();
    show_end(last);
  }

 private:
  /// Returns false if `stop_` was requested.
  bool await_consumers() {
    const auto until = clock::now() + arguments_.timeout;
    while (arguments_.consumers && producer_.stats().consumers < *arguments_.consumers) {
      if (clock::now() >= until) {
        throw error(errc::timed_out,
                    "wait for consumers of",
                    arguments_.name,
                    fmt::format("{} of {} have joined within {}",
                                producer_.stats().consumers,
                                *arguments_.consumers,
                                app::duration_text(arguments_.timeout)),
                    "start more of them (gpushm channel sub), or give a longer --timeout");
      }
      line_.update([&] {
        return fmt::format("\"{}\": waits for consumers: {} of {} have joined",
                           arguments_.name,
                           producer_.stats().consumers,
                           *arguments_.consumers);
      });
      if (stop_.wait(milliseconds(5))) {
        return false;
      }
    }
    return true;
  }

  void publish_all() {
    const std::uint64_t run = random_number();
    pace due(arguments_.rate);
    while (!arguments_.count || items_ < *arguments_.count) {
      if (!due.wait(stop_)) {
        ended_ = "signal";
        return;
      }
      auto slot = acquire();
      if (!slot) {
        ended_ = "signal";
        return;
      }
      item_header header;
      header.run = run;
      header.number = producer_.stats().announced + 1;  // one slot at a time
      if (!source_.fill(memory_.begin(slot->data(), slot->bytes()), header, stop_)) {
        slot->abandon();
        ended_ = stop_.pending() ? "signal" : "file";
        return;
      }
      publish(*slot, header);
      line_.update([&] { return live_text(); });
    }
  }

  void publish(channel_slot& slot, item_header& header) {
    if (arguments_.corrupt == items_ + 1) {
      std::byte& middle = memory_.begin(slot.data(), slot.bytes())[header.length / 2];
      middle ^= std::byte{1};
    }
    memory_.finish(slot.data(), header.length);
    header.sent_ns = static_cast<std::uint64_t>(clock::now().time_since_epoch().count());
    const auto metadata = encode(header);
    last_ = slot.publish(metadata);
    first_ = items_ == 0 ? last_ : first_;
    ++items_;
    bytes_ += header.length;
  }

  std::optional<channel_slot> acquire() {
    if (auto slot = producer_.acquire(milliseconds(0))) {
      return slot;
    }
    const auto begin = clock::now();
    std::optional<channel_slot> slot;
    while (!slot && !stop_.pending()) {
      slot = producer_.acquire(slice);
      line_.update([&] { return live_text(); });
    }
    waited_ += clock::now() - begin;
    return slot;
  }

  [[nodiscard]] std::string waited_text() const {
    return waited_ == clock::duration(0) ? "0 s" : app::duration_text(waited_);
  }

  [[nodiscard]] std::string live_text() {
    return fmt::format("\"{}\": {} items, {}, consumers: {}, waited {}",
                       arguments_.name,
                       grouped(items_),
                       recent_.text(items_, bytes_),
                       producer_.stats().consumers,
                       waited_text());
  }

  void show_begin() {
    if (arguments_.connection.json) {
      print_json(json{{"publishing",
                       {{"name", arguments_.name},
                        {"slots", shape_.slots},
                        {"slot_bytes", shape_.slot_bytes},
                        {"device", to_json(device_)},
                        {"continuation", producer_.stats().is_continuation}}}});
    } else {
      print_line(fmt::format("publishing on \"{}\": {}, {}{}",
                             arguments_.name,
                             shape_text(shape_),
                             device_text(device_),
                             producer_.stats().is_continuation ? ", continued" : ""));
      flush_output();
    }
  }

  void show_end(const producer_stats& last) const {
    const double seconds = seconds_of(end_ - start_);
    if (arguments_.connection.json) {
      print_json(json{{"published",
                       {{"name", arguments_.name},
                        {"items", items_},
                        {"bytes", bytes_},
                        {"first_item", items_ == 0 ? json(nullptr) : json(first_)},
                        {"last_item", items_ == 0 ? json(nullptr) : json(last_)},
                        {"seconds", seconds},
                        {"items_per_second", per_second(items_, seconds)},
                        {"bytes_per_second", per_second(bytes_, seconds)},
                        {"waited_seconds", seconds_of(waited_)},
                        {"consumers", last.consumers},
                        {"dropped", last.dropped},
                        {"ended_by", ended_}}}});
      return;
    }
    print_line(fmt::format("published {} items, {}, in {}",
                           grouped(items_),
                           base::size_text(bytes_),
                           app::duration_text(end_ - start_)));
    fields lines{{"rate", rate_text(items_, bytes_, seconds)},
                 {"waited", waited_text() + " for consumers"},
                 {"consumers", std::to_string(last.consumers)}};
    if (last.dropped != 0) {
      lines.emplace_back("dropped", fmt::format("{} with impossible words", last.dropped));
    }
    print(base::fields_text(lines, 2));
  }

  const channel_pub_arguments& arguments_;
  client broker_;
  channel_shape shape_;
  item_source source_;
  app::stop_signal stop_;
  channel_producer producer_;
  device_id device_;
  slot_memory memory_;
  live_line line_;
  recent_rate recent_;
  clock::time_point start_ = clock::now();
  clock::time_point end_;
  clock::duration waited_{0};
  std::uint64_t items_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::string ended_ = "count";
};

int run_channel_pub(const channel_pub_arguments& arguments) {
  publisher(arguments).run();
  return exit_ok;
}

}  // namespace

void add_channel_pub(command_list& commands) {
  add_command<channel_pub_arguments>(commands,
                                     "pub",
                                     "Publish items: a pattern, or a file",
                                     add_channel_pub_arguments,
                                     run_channel_pub);
}

}  // namespace gpushm::cli
