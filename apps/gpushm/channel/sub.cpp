// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "apps/gpushm/channel/channel_options.hpp"
#include "apps/gpushm/channel/commands.hpp"
#include "apps/gpushm/channel/item_header.hpp"
#include "apps/gpushm/channel/latencies.hpp"
#include "apps/gpushm/channel/live_line.hpp"
#include "apps/gpushm/channel/rates.hpp"
#include "apps/gpushm/channel/slot_memory.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/demo/pattern.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/checksum.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/output_file.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/channel.h"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

namespace {

struct channel_sub_arguments {
  connection_arguments connection;
  std::string name;
  consumer_mode mode = consumer_mode::block;
  std::optional<std::uint32_t> held;
  std::string device;
  std::optional<std::uint64_t> count;
  std::string output;
  std::chrono::milliseconds delay{0};
  std::chrono::milliseconds timeout{30'000};  ///< of the wait for the channel
  std::chrono::milliseconds resume{0};        ///< how long to wait for a new producer
};

void add_channel_sub_arguments(CLI::App& app, channel_sub_arguments& arguments) {
  add_channel_name(app, arguments.name);
  auto* latest = app.add_flag_callback(
      "--latest",
      [&arguments] { arguments.mode = consumer_mode::latest; },
      "Get the newest item, and skip others (default: each item, in order)");
  app.add_flag_callback(
         "--share",
         [&arguments] { arguments.mode = consumer_mode::share; },
         "Share the work: each item goes to one of the consumers with this option")
      ->excludes(latest);
  add_text(app,
           "--held",
           "K",
           "Hold this many items at a time, 1 to 16 (default: 1; with --share 2)",
           [&](const std::string& text) {
             arguments.held = up_to("--held", text, GPUSHM_MAX_HELD_ITEMS);
           });
  add_device(app, "--device", "GPU that reads (default: the memory's GPU)", arguments.device);
  add_items(app, "End after this many items", arguments.count);
  add_out(app, "Write the items' bytes to this file", arguments.output, arguments.connection.json);
  add_duration(app, "--delay", "Hold each item this long: a slow consumer", [&](auto value) {
    arguments.delay = value;
  });
  add_duration(
      app, "--timeout", "How long to wait for the channel (default: 30s)", [&](auto value) {
        arguments.timeout = value;
      });
  add_duration(app,
               "--resume",
               "How long to wait for a new producer after the death of one (default: 0, fail)",
               [&](auto value) { arguments.resume = value; });
  add_connection(app, arguments.connection);
}

using clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC
using std::chrono::milliseconds;

/// How long one wait for an item lasts: a signal is noticed after it.
constexpr milliseconds slice{50};

double seconds_of(clock::duration value) {
  return std::chrono::duration<double>(value).count();
}

error wrong_item(const std::string& name, const std::string& cause) {
  return {errc::protocol_error,
          "check",
          name,
          cause,
          "report this as a bug of gpushm, or of the program that writes to the channel's memory"};
}

consumer_options options_of(const channel_sub_arguments& arguments) {
  consumer_options options;
  options.mode = arguments.mode;
  options.held = arguments.held.value_or(0);
  options.device = arguments.device;
  options.timeout = arguments.timeout;
  options.resume = arguments.resume;
  return options;
}

/// As the modes are called in options, output and JSON.
const char* mode_name(consumer_mode mode) {
  switch (mode) {
    case consumer_mode::latest:
      return "latest";
    case consumer_mode::share:
      return "share";
    case consumer_mode::block:
      break;
  }
  return "block";
}

const char* mode_text(consumer_mode mode) {
  switch (mode) {
    case consumer_mode::latest:
      return "the newest item at a time";
    case consumer_mode::share:
      return "a share of the items";
    case consumer_mode::block:
      break;
  }
  return "each item, in order";
}

void check(const channel_sub_arguments& arguments) {
  if (arguments.held && arguments.mode == consumer_mode::block) {
    throw usage_error(errc::invalid_argument,
                      "join channel",
                      arguments.name,
                      "a consumer of each item may hold all slots",
                      "use --held with --latest or --share");
  }
}

channel_consumer join(const client& broker, const channel_sub_arguments& arguments) {
  try {
    return channel_consumer::open(broker, arguments.name, options_of(arguments));
  } catch (const error& why) {
    if (why.code() != errc::no_such_segment) {
      throw why.in("join channel", arguments.name);
    }
    throw error(why.code(),
                "join channel",
                arguments.name,
                fmt::format("it has no producer after {}", app::duration_text(arguments.timeout)),
                "start one (gpushm channel pub), or give a longer --timeout");
  }
}

class subscriber {
 public:
  explicit subscriber(const channel_sub_arguments& arguments)
      : arguments_(arguments),
        broker_(connect(arguments.connection, arguments.timeout)),
        consumer_(join(broker_, arguments)),
        device_(broker_.stat(arguments.name).device),
        memory_(arguments.name, device_, arguments.device) {
    if (!arguments.output.empty()) {
      file_.emplace(arguments.output);
      if (arguments.output == standard_output) {
        reserve_standard_output();
      }
    }
  }

  int run() {
    show_begin();
    std::optional<error> failure;
    try {
      failure = read_all();
      while (!held_.empty()) {
        finish_one();
      }
      if (file_ && !failure) {
        file_->commit();
      }
    } catch (const error& why) {
      ended_ = "error";
      failure = why;
    }
    end_ = clock::now();
    line_.clear();
    show_end(failure);
    if (failure) {
      flush_output();
      throw error(*failure);
    }
    return exit_ok;
  }

 private:
  /// Returns the death of the last producer.
  std::optional<error> read_all() {
    for (;;) {
      if (arguments_.count && items_ >= *arguments_.count) {
        ended_ = "count";
        return std::nullopt;
      }
      if (stop_.pending()) {
        ended_ = "signal";
        return std::nullopt;
      }
      line_.update([&] { return live_text(); });
      std::optional<channel_item> item;
      try {
        item = consumer_.next(slice);
      } catch (const error& why) {
        if (why.code() != errc::peer_died) {
          throw why.in("read channel", arguments_.name);
        }
        ended_ = "death";
        return why.in("read channel", arguments_.name);
      }
      if (item) {
        take(std::move(*item));
      } else if (consumer_.has_ended()) {
        ended_ = "producer";
        return std::nullopt;
      }
    }
  }

  struct held_item {
    channel_item item;
    item_header header;
    header_kind kind = header_kind::other;
  };

  void take(channel_item item) {
    const auto now = clock::now();
    start_ = items_ == 0 ? now : start_;
    ++items_;
    held_item got{std::move(item), {}, header_kind::other};
    got.kind = decode(got.item.metadata(), got.header);
    check_order(got);
    skipped_ += got.item.skipped();
    last_ = std::max(last_, got.item.number());
    if (got.kind == header_kind::known) {
      times_.add(now.time_since_epoch() -
                 std::chrono::nanoseconds(static_cast<std::int64_t>(got.header.sent_ns)));
    }
    held_.push_back(std::move(got));
    if (arguments_.delay.count() > 0) {
      static_cast<void>(stop_.wait(arguments_.delay));
    }
    while (held_.size() >= arguments_.held.value_or(1)) {
      finish_one();
    }
  }

  /// Numbers only grow, and a consumer of each item misses none while it has the same producer.
  void check_order(const held_item& item) {
    const std::uint64_t number = item.item.number();
    if (item.kind == header_kind::unknown) {
      throw wrong_item(arguments_.name,
                       fmt::format("item {} was published by another version of gpushm", number));
    }
    check_metadata(item);
    // What a dead consumer has not released may come late.
    if (arguments_.mode == consumer_mode::share) {
      return;
    }
    if (number <= last_) {
      throw wrong_item(arguments_.name, fmt::format("item {} came after item {}", number, last_));
    }
    // A producer that has died leaves numbers without an item.
    if (!is_same_run_) {
      return;
    }
    const std::uint64_t missing = number - last_ - 1;
    if (arguments_.mode == consumer_mode::block && missing != 0) {
      throw wrong_item(arguments_.name,
                       fmt::format("items {} to {} are missing", last_ + 1, number - 1));
    }
    if (item.item.skipped() != missing) {
      throw wrong_item(arguments_.name,
                       fmt::format("item {} came after item {}, and {} skipped items were reported",
                                   number,
                                   last_,
                                   item.item.skipped()));
    }
  }

  void check_metadata(const held_item& item) {
    is_same_run_ = item.kind == header_kind::known && producers_ != 0 && item.header.run == run_;
    if (item.kind != header_kind::known) {
      return;
    }
    if (item.header.number != item.item.number() || item.header.length > item.item.bytes()) {
      throw wrong_item(arguments_.name,
                       fmt::format("item {} has the metadata of item {}, of {} bytes",
                                   item.item.number(),
                                   item.header.number,
                                   item.header.length));
    }
    run_ = item.header.run;
    producers_ += is_same_run_ ? 0 : 1;
  }

  /// Checks the oldest item as late as possible, so that a slot that is written while it is held is
  /// detected, and releases it.
  void finish_one() {
    held_item item = std::move(held_.front());
    held_.pop_front();
    const bool known = item.kind == header_kind::known;
    const std::uint64_t length = known ? item.header.length : item.item.bytes();
    if (known || file_) {
      const auto bytes = memory_.read(item.item.data(), length);
      if (known) {
        check_bytes(item, bytes);
        ++verified_;
      }
      if (file_) {
        file_->write(bytes);
      }
    }
    bytes_ += length;
    item.item.release();
  }

  void check_bytes(const held_item& item, std::span<const std::byte> bytes) {
    if (item.header.content == item_content::pattern) {
      const check_result result = check_pattern(item.header.check, 0, bytes);
      if (result.wrong_bytes != 0) {
        throw wrong_item(arguments_.name,
                         fmt::format("{} of {} bytes of item {} are wrong, the first at {}",
                                     result.wrong_bytes,
                                     result.checked_bytes,
                                     item.item.number(),
                                     result.first_wrong_offset));
      }
      return;
    }
    crc32c sum;
    sum.add(bytes);
    if (sum.value() != item.header.check) {
      throw wrong_item(arguments_.name,
                       fmt::format("the {} bytes of item {} have the checksum {:08x}, not {:08x}",
                                   bytes.size(),
                                   item.item.number(),
                                   sum.value(),
                                   item.header.check));
    }
  }

  [[nodiscard]] std::string live_text() {
    if (items_ == 0) {
      return fmt::format("\"{}\": no items yet", arguments_.name);
    }
    return fmt::format("\"{}\": {} items, {}, p50 {}, p99 {}, {} skipped",
                       arguments_.name,
                       grouped(items_),
                       recent_.text(items_, bytes_),
                       app::duration_text(times_.percentile(0.5)),
                       app::duration_text(times_.percentile(0.99)),
                       grouped(skipped_));
  }

  void show_begin() const {
    if (arguments_.connection.json) {
      print_json(json{{"joined",
                       {{"name", arguments_.name},
                        {"mode", mode_name(arguments_.mode)},
                        {"device", to_json(device_)}}}});
      return;
    }
    print_line(fmt::format("joined \"{}\": {}, {}",
                           arguments_.name,
                           mode_text(arguments_.mode),
                           device_text(device_)));
    flush_output();
  }

  [[nodiscard]] json latency_json() const {
    if (times_.count() == 0) {
      return nullptr;
    }
    return {{"p50", times_.percentile(0.5).count()},
            {"p90", times_.percentile(0.9).count()},
            {"p99", times_.percentile(0.99).count()},
            {"max", times_.max().count()}};
  }

  void show_end(const std::optional<error>& failure) const {
    const double seconds = items_ == 0 ? 0 : seconds_of(end_ - start_);
    if (arguments_.connection.json) {
      print_json(json{{"received",
                       {{"name", arguments_.name},
                        {"items", items_},
                        {"bytes", bytes_},
                        {"last_item", items_ == 0 ? json(nullptr) : json(last_)},
                        {"skipped", skipped_},
                        {"verified", verified_},
                        {"producers", producers_},
                        {"seconds", seconds},
                        {"items_per_second", per_second(items_, seconds)},
                        {"bytes_per_second", per_second(bytes_, seconds)},
                        {"latency_ns", latency_json()},
                        {"ended_by", ended_},
                        {"output", failure || !file_ ? json(nullptr) : json(arguments_.output)}}}});
      return;
    }
    print_line(fmt::format("received {} items, {}, in {}",
                           grouped(items_),
                           base::size_text(bytes_),
                           app::duration_text(items_ == 0 ? clock::duration(0) : end_ - start_)));
    fields lines;
    if (items_ != 0) {
      lines.emplace_back("rate", rate_text(items_, bytes_, seconds));
    }
    if (times_.count() != 0) {
      lines.emplace_back("latency",
                         fmt::format("p50 {}, p90 {}, p99 {}, max {}",
                                     app::duration_text(times_.percentile(0.5)),
                                     app::duration_text(times_.percentile(0.9)),
                                     app::duration_text(times_.percentile(0.99)),
                                     app::duration_text(times_.max())));
    }
    lines.emplace_back("skipped", grouped(skipped_));
    lines.emplace_back("verified",
                       verified_ == items_ ? "all" : fmt::format("{} of {}", verified_, items_));
    if (producers_ > 1) {
      lines.emplace_back("producers", std::to_string(producers_));
    }
    if (file_ && !failure) {
      lines.emplace_back(
          "written to",
          arguments_.output == standard_output ? "standard output" : arguments_.output);
    }
    print(base::fields_text(lines, 2));
  }

  const channel_sub_arguments& arguments_;
  client broker_;
  channel_consumer consumer_;
  device_id device_;
  slot_memory memory_;
  std::optional<output_file> file_;
  app::stop_signal stop_;
  live_line line_;
  recent_rate recent_;
  latencies times_;
  std::deque<held_item> held_;
  clock::time_point start_ = clock::now();
  clock::time_point end_;
  std::uint64_t items_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t verified_ = 0;
  std::uint64_t last_ = 0;
  std::uint64_t run_ = 0;
  bool is_same_run_ = false;  ///< the last two items are of one `pub`
  std::uint64_t producers_ = 0;
  std::string ended_;
};

int run_channel_sub(const channel_sub_arguments& arguments) {
  check(arguments);
  return subscriber(arguments).run();
}

}  // namespace

void add_channel_sub(command_list& commands) {
  add_command<channel_sub_arguments>(commands,
                                     "sub",
                                     "Read items, check every byte, and measure rate and latency",
                                     add_channel_sub_arguments,
                                     run_channel_sub);
}

}  // namespace gpushm::cli
