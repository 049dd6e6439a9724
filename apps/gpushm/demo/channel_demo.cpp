// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/channel_demo.hpp"

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "apps/gpushm/channel/rates.hpp"
#include "apps/gpushm/demo/demo_size.hpp"
#include "apps/gpushm/demo/role_process.hpp"
#include "apps/gpushm/demo/step_log.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "apps/support/temp_directory.hpp"
#include "base/text/size_text.hpp"
#include "gpushm/channel.hpp"

namespace gpushm::cli {

namespace {

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* channel_name = "demo/channel";
constexpr std::uint32_t slots = 4;
constexpr std::uint64_t usual_slot_bytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t items = 400;
constexpr std::uint64_t items_after = 100;
/// Before the producer is killed.
constexpr std::uint64_t items_before = 50;
constexpr const char* rate = "400";

/// `gpushm channel pub` or `sub` in a process of its own, with --json.
class member {
 public:
  member(std::string name, std::vector<std::string> arguments, const std::string& socket)
      : what_(std::move(name)) {
    base::child_options options;
    options.argv = {base::executable_path(), "channel"};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.argv.insert(options.argv.end(), {channel_name, "--socket", socket, "--json"});
    options.cancel_fd = app::stop_signal::fd();
    child_.emplace(base::child_process::start(options));
  }

  [[nodiscard]] std::string pid_text() const { return fmt::format("(pid {})", child_->pid()); }

  /// The value of its next document, which must have this key.
  json expect(const char* key, base::deadline until) {
    const auto line = child_->read_line(until);
    const json document = line ? json::parse(*line, nullptr, false) : json();
    const auto failure = document.is_object() ? document.find("error") : document.end();
    if (document.is_object() && failure != document.end()) {
      throw error(errc::system_error, what_, {}, failure->value("message", ""));
    }
    if (!document.is_object() || !document.contains(key)) {
      throw error(errc::protocol_error,
                  "wait for",
                  what_,
                  fmt::format("expected \"{}\", received {}", key, line ? *line : "nothing"));
    }
    return document.at(key);
  }
  /// Its last document; the process must end with status 0.
  json finish(const char* key, base::deadline until) {
    json last = expect(key, until);
    if (last.value("ended_by", "") == "error") {
      expect("nothing", until);  // throws the error that follows
    }
    const auto status = child_->wait(until);
    if (!status || *status != 0) {
      throw error(errc::peer_died,
                  "stop",
                  what_,
                  status ? "it ended: " + base::status_text(*status) : "it did not exit in time");
    }
    return last;
  }
  void kill(base::deadline until) {
    child_->kill(SIGKILL);
    if (!child_->wait(until)) {
      throw error(errc::system_error, "kill", what_, "it did not die in time");
    }
  }

 private:
  std::string what_;
  std::optional<base::child_process> child_;
};

std::string nanoseconds_text(const json& latency, const char* key) {
  return app::duration_text(std::chrono::nanoseconds(latency.at(key).get<std::int64_t>()));
}

std::string latency_text(const json& received) {
  const json& latency = received.at("latency_ns");
  return latency.is_null() ? std::string("no latency")
                           : fmt::format("p50 {}, p99 {}",
                                         nanoseconds_text(latency, "p50"),
                                         nanoseconds_text(latency, "p99"));
}

std::uint64_t number(const json& counts, const char* key) {
  return counts.at(key).get<std::uint64_t>();
}

class channel_demo {
 public:
  channel_demo(const demo_arguments& arguments, json& document)
      : arguments_(arguments),
        document_(document),
        log_(arguments.json, document.at("steps")),
        directory_("gpushm-demo") {}

  void run() {
    prepare();
    member each = subscribe("a consumer of each item", {});
    log_.step("consumer_started",
              fmt::format("consumer {} starts first: neither the broker nor the channel exists yet",
                          each.pid_text()));
    role_process broker(
        "broker",
        {"--socket", socket(), "--timeout", fmt::format("{}ms", timeout_.count() + 2000)},
        app::stop_signal::fd());
    broker.expect("started", until_);
    broker.expect("ready", until_);
    log_.step("broker_ready", fmt::format("broker (pid {}) serves {}", broker.pid(), socket()));
    show_flow(each);
    show_death();
    broker.finish(until_);
  }

 private:
  void prepare() {
    place_ = find_place(arguments_.device);
    slot_bytes_ = arguments_.size_bytes.value_or(usual_slot_bytes);
    timeout_ = arguments_.timeout.count() != 0 ? arguments_.timeout : milliseconds(60'000);
    until_ = base::deadline_in(timeout_);
    const bool host = place_.kind == device_kind::host;
    log_.print(
        fmt::format("gpushm demo: a channel of {} slots of {} in {}",
                    slots,
                    base::size_text(slot_bytes_),
                    host ? "host memory" : fmt::format("{}, {}", place_.name, place_.device)));
    if (!place_.remark.empty()) {
      log_.print("host memory, because " + place_.remark);
    }
    document_["device"] = place_.device;
    document_["device_name"] = place_.name.empty() ? json(nullptr) : json(place_.name);
    document_["device_remark"] = place_.remark.empty() ? json(nullptr) : json(place_.remark);
    document_["slots"] = slots;
    document_["slot_bytes"] = slot_bytes_;
  }

  [[nodiscard]] std::string socket() const { return directory_.path() + "/socket"; }
  [[nodiscard]] std::string time_left() const { return fmt::format("{}ms", timeout_.count()); }

  member subscribe(const char* name, std::vector<std::string> more) const {
    more.insert(more.begin(), {"sub", "--timeout", time_left()});
    if (!arguments_.consumer_device.empty()) {
      more.insert(more.end(), {"--device", arguments_.consumer_device});
    }
    return {name, std::move(more), socket()};
  }
  member publish(const char* name, std::vector<std::string> more) const {
    more.insert(more.begin(),
                {"pub", "--rate", rate, "--device", place_.device, "--timeout", time_left()});
    more.insert(more.end(), {"--slots", std::to_string(slots)});
    more.insert(more.end(), {"--slot-size", std::to_string(slot_bytes_)});
    return {name, std::move(more), socket()};
  }

  /// One producer, a consumer of each item, and a slow one of the newest.
  void show_flow(member& each) {
    member newest =
        subscribe("a slow consumer of the newest item", {"--latest", "--delay", "10ms"});
    std::vector<std::string> options{"--count", std::to_string(items), "--wait-for-consumers", "2"};
    if (arguments_.corrupt != corrupt_stage::none) {
      options.insert(options.end(), {"--corrupt", std::to_string(items / 2)});
    }
    member producer = publish("the producer", options);
    producer.expect("publishing", until_);
    each.expect("joined", until_);
    newest.expect("joined", until_);
    log_.step("joined",
              fmt::format("producer {} has made the channel; consumer {} and a slow consumer {} "
                          "have joined",
                          producer.pid_text(),
                          each.pid_text(),
                          newest.pid_text()));
    const json of_each = each.finish("received", until_);
    const json some = newest.finish("received", until_);
    const json sent = producer.finish("published", until_);
    log_.step(
        "published",
        fmt::format("producer has published {} items at {} a second", number(sent, "items"), rate),
        sent.at("seconds"));
    log_.step("each_received",
              fmt::format("consumer received {} items, {} skipped, and checked every byte: {}",
                          number(of_each, "items"),
                          number(of_each, "skipped"),
                          latency_text(of_each)));
    log_.step("newest_received",
              fmt::format("slow consumer received {} items, {} skipped, and checked every byte: {}",
                          number(some, "items"),
                          number(some, "skipped"),
                          latency_text(some)));
    require(number(sent, "items") == items && number(of_each, "items") == items &&
                number(of_each, "skipped") == 0 && is_checked(of_each),
            "the consumer of each item did not get each");
    require(number(some, "items") > 0 && is_checked(some), "the slow consumer got nothing");
    document_["consumers"].push_back(of_each);
    document_["consumers"].push_back(some);
  }

  /// A producer is killed, and another one continues.
  void show_death() {
    member consumer = subscribe("the consumer that stays", {"--resume", time_left()});
    member first = publish("the producer that dies", {"--wait-for-consumers", "1"});
    first.expect("publishing", until_);
    consumer.expect("joined", until_);
    client broker = client::connect({.socket_path = socket()});
    await("the first items", [&] {
      const auto status = channel_status::read(broker, channel_name);
      return status.published >= items_before;
    });
    const std::string pid = first.pid_text();
    first.kill(until_);
    log_.step("producer_killed", "another producer " + pid + " killed with SIGKILL");
    const std::string claim = std::string(channel_name) + "/~producer";
    const auto killed = clock::now();
    await("the end of the dead producer", [&] { return broker.list(claim).empty(); });
    const double seconds = std::chrono::duration<double>(clock::now() - killed).count();
    log_.step("producer_ended", "broker has ended the dead producer's words", seconds);
    member second = publish("the producer that continues",
                            {"--count", std::to_string(items_after), "--wait-for-consumers", "1"});
    const json started = second.expect("publishing", until_);
    require(started.at("continuation").get<bool>(), "the channel was not continued");
    log_.step("continued", "a new producer " + second.pid_text() + " continues the channel");
    const json received = consumer.finish("received", until_);
    const json sent = second.finish("published", until_);
    log_.step("stayed_received",
              fmt::format("consumer received {} items of {} producers, and checked every byte",
                          number(received, "items"),
                          number(received, "producers")));
    require(number(received, "producers") == 2 && is_checked(received) &&
                number(received, "items") >= items_before + number(sent, "items"),
            "the consumer did not get the items of both producers");
    document_["consumers"].push_back(received);
  }

  template <typename Condition>
  void await(const char* condition_name, Condition&& is_met) const {
    while (!is_met()) {
      if (clock::now() >= until_ || stop_.wait(milliseconds(2))) {
        throw error(
            errc::timed_out, "wait for", condition_name, "it took too long, or a signal came");
      }
    }
  }
  [[nodiscard]] static bool is_checked(const json& received) {
    return number(received, "verified") == number(received, "items");
  }
  static void require(bool condition, const char* failure) {
    if (!condition) {
      throw error(errc::protocol_error, "demo", channel_name, failure, "report this as a bug");
    }
  }

  const demo_arguments& arguments_;
  json& document_;
  step_log log_;
  app::stop_signal stop_;  // before the directory, so that an interrupted demo removes it
  app::temp_directory directory_;
  demo_place place_;
  std::uint64_t slot_bytes_ = 0;
  milliseconds timeout_{0};
  base::deadline until_;
};

}  // namespace

int run_channel_demo(const demo_arguments& arguments) {
  if (arguments.isolated) {
    throw usage_error(errc::invalid_argument,
                      "demo",
                      "--channel",
                      "the processes of this demo are not isolated",
                      "leave out --isolated");
  }
  print_warnings();
  json document{{"result", "FAIL"},
                {"device", nullptr},
                {"device_name", nullptr},
                {"device_remark", nullptr},
                {"slots", nullptr},
                {"slot_bytes", nullptr},
                {"consumers", json::array()},
                {"steps", json::array()}};
  return finish_demo(arguments.json, document, [&] { channel_demo(arguments, document).run(); });
}

}  // namespace gpushm::cli
