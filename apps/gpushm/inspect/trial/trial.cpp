// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/trial/trial.hpp"

#include <fmt/core.h>

#include <array>
#include <optional>

#include "apps/gpushm/json_output.hpp"
#include "base/files/file.hpp"

namespace gpushm::cli {

namespace {

using base::deadline;
using std::chrono::milliseconds;

/// Time limit for a worker to kill its child and report it.
constexpr milliseconds kill_grace{2'000};

std::uint64_t random_number() {
  std::array<std::uint8_t, 8> bytes{};
  base::random_bytes(bytes);
  std::uint64_t value = 0;
  for (const std::uint8_t each : bytes) {
    value = value << 8U | each;
  }
  return value;
}

/// Thrown inside a trial: its result.
struct trial_end {
  trial_result result;
  std::string side;
  std::string failure;
  std::string text;
};

/// One of the two programs, and its child for the tested way. Thread-safety: distinct objects:
/// safe; shared objects: unsafe.
class trial_side {
 public:
  trial_side(std::string name,
             base::child_process& program,
             inspect::way sharing_way,
             deadline until)
      : name_(std::move(name)), program_(program), how_(sharing_way), until_(until) {}

  /// Returns the PID of its child in that process's PID namespace.
  std::int32_t hello() {
    order("hello");
    const json event = next("hello", until_);
    if (event["event"] == "ended") {
      over_ = true;
      throw trial_end{trial_result::not_run,
                      name_,
                      "this way was already tested with this pair",
                      "this way was already tested with this pair; its child ended with " +
                          event.value("status", "?")};
    }
    return event.value("pid", 0);
  }

  /// Sends an order and waits for `expected`. Throws trial_end for any other result.
  json ask(const std::string& command, const std::string& expected, json details = json::object()) {
    order(command, std::move(details));
    json event;
    try {
      event = next(command, until_);
    } catch (const error& failure) {
      if (failure.code() != errc::timed_out) {
        throw;
      }
      hung_ = true;
      const std::string text =
          fmt::format("no reply to \"{}\" in time: its process was killed", command);
      throw trial_end{trial_result::fails, name_, std::string(to_string(errc::timed_out)), text};
    }
    const std::string got = event.value("event", "");
    if (got == "ended") {
      over_ = true;
      const std::string status = event.value("status", "?");
      throw trial_end{trial_result::crashes,
                      name_,
                      status,
                      fmt::format("the {} was {} in \"{}\"", name_, status, command)};
    }
    if (got == "failed") {
      throw trial_end{
          trial_result::fails, name_, event.value("failure", "?"), event.value("text", "")};
    }
    if (got != expected) {
      throw_protocol(event.dump());
    }
    return event;
  }

  /// Makes its child exit, and kills it if it hangs. Returns the result if the child did not exit
  /// cleanly.
  std::optional<trial_end> finish() {
    if (over_) {
      return std::nullopt;
    }
    over_ = true;
    if (!hung_) {
      order("end");
      try {
        const json event = ended("end", until_);
        if (!event.value("crashed", true)) {
          return std::nullopt;
        }
        const std::string status = event.value("status", "?");
        return trial_end{trial_result::crashes,
                         name_,
                         status,
                         fmt::format("the {} was {} when it released the memory", name_, status)};
      } catch (const error& failure) {
        if (failure.code() != errc::timed_out) {
          throw;
        }
      }
    }
    order("kill");
    static_cast<void>(ended("kill", base::deadline_in(kill_grace)));
    if (hung_) {
      return std::nullopt;
    }
    return trial_end{trial_result::fails,
                     name_,
                     std::string(to_string(errc::timed_out)),
                     "it did not exit in time: its process was killed"};
  }

 private:
  void order(const std::string& command, json details = json::object()) {
    details["way"] = to_string(how_);
    details["order"] = command;
    try {
      program_.write_line(details.dump());
    } catch (const error& failure) {
      if (failure.code() != errc::peer_died) {
        throw;
      }
      // Its last messages explain why it exited.
      const deadline soon = base::deadline_in(kill_grace);
      while (const auto line = program_.read_line(soon)) {
        check_started(json::parse(*line, nullptr, false));
      }
      throw_exited(command);
    }
  }

  /// Returns the next event of this way. Throws `error`: timed_out, peer_died, and the error that
  /// prevented the worker from starting, such as permission_denied.
  json next(const std::string& command, deadline until) {
    while (const auto line = program_.read_line(until)) {
      json event = json::parse(*line, nullptr, false);
      if (!event.is_object()) {
        throw_protocol(*line);
      }
      check_started(event);
      // Ignore late events of another way, whose trial is over.
      if (event.value("way", "") == to_string(how_)) {
        return event;
      }
    }
    throw_exited(command);
  }
  json ended(const std::string& command, deadline until) {
    for (;;) {
      json event = next(command, until);
      if (event.value("event", "") == "ended") {
        return event;
      }
    }
  }

  void check_started(const json& event) const {
    if (!event.is_object() || event.contains("way") || event.value("event", "") != "failed") {
      return;
    }
    const std::string text = event.value("text", "");
    if (!event.contains("error")) {
      throw_protocol(text);
    }
    const bool denied = event["error"].value("code", "") == to_string(errc::permission_denied);
    throw error(denied ? errc::permission_denied : errc::system_error, "start trial", name_, text);
  }
  [[noreturn]] void throw_exited(const std::string& command) {
    const auto status = program_.wait(base::deadline_in(kill_grace));
    throw error(errc::peer_died,
                "try sharing",
                name_,
                fmt::format("its program ended ({}) before replying to \"{}\"",
                            status ? base::status_text(*status) : "no status",
                            command));
  }
  [[noreturn]] void throw_protocol(const std::string& message) const {
    throw error(errc::protocol_error, "try sharing", name_, "unexpected message: " + message);
  }

  std::string name_;
  base::child_process& program_;
  inspect::way how_;
  deadline until_;
  bool over_ = false;  ///< its child has exited
  bool hung_ = false;
};

std::optional<bool> rdma_in(const json& event) {
  const auto value = event.find("rdma");
  return value != event.end() && value->is_boolean() ? std::optional(value->get<bool>())
                                                     : std::nullopt;
}

void share(trial_side& exporter,
           trial_side& importer,
           const trial_setup& setup,
           trial_outcome& outcome) {
  outcome.exporter_pid = exporter.hello();
  outcome.importer_pid = importer.hello();
  const std::uint64_t identity = random_number();
  const std::uint64_t seed = random_number();
  const std::uint64_t answer_seed = random_number();
  const json common{{"socket", setup.socket},
                    {"name", fmt::format("trial/{}/{}", identity, to_string(setup.how))},
                    {"size_bytes", setup.size_bytes},
                    {"seed", seed}};
  json order = common;
  order["device"] = setup.exporter_device;
  const json exported = exporter.ask("export", "exported", std::move(order));
  outcome.exporter_rdma = rdma_in(exported);
  order = common;
  order["device"] = setup.importer_device;
  order["memory_device"] = exported.at("device");
  order["handle"] = exported.at("handle");
  order["answer_seed"] = answer_seed;
  order["measure"] = setup.measure;
  const json answered = importer.ask("open", "answered", std::move(order));
  outcome.open_time = std::chrono::nanoseconds(answered.value("open_ns", std::int64_t{0}));
  outcome.importer_rdma = rdma_in(answered);
  if (const auto rate = answered.find("bytes_per_second");
      rate != answered.end() && rate->is_number()) {
    outcome.bytes_per_second = rate->get<double>();
  }
  exporter.ask("check", "checked", json{{"seed", answer_seed}});
}

void take(trial_outcome& outcome, trial_end&& end) {
  outcome.result = end.result;
  outcome.side = std::move(end.side);
  outcome.failure = std::move(end.failure);
  outcome.text = std::move(end.text);
}

}  // namespace

std::string_view to_string(trial_result value) noexcept {
  switch (value) {
    case trial_result::works:
      return "works";
    case trial_result::fails:
      return "fails";
    case trial_result::crashes:
      return "crashes";
    case trial_result::not_run:
      return "not run";
  }
  return "unknown";
}

trial_outcome run_trial(base::child_process& exporter,
                        base::child_process& importer,
                        const trial_setup& setup,
                        base::deadline until) {
  trial_side from("exporter", exporter, setup.how, until);
  trial_side to("importer", importer, setup.how, until);
  trial_outcome outcome;
  try {
    share(from, to, setup, outcome);
    outcome.result = trial_result::works;
  } catch (trial_end& end) {
    take(outcome, std::move(end));
    if (outcome.result == trial_result::not_run) {
      return outcome;
    }
  }
  // The importer closes the memory before the exporter frees it, as in correct programs.
  auto importer_end = to.finish();
  auto exporter_end = from.finish();
  for (auto* end : {&importer_end, &exporter_end}) {
    if (*end && outcome.result == trial_result::works) {
      take(outcome, std::move(**end));
    }
  }
  return outcome;
}

}  // namespace gpushm::cli
