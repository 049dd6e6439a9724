// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/ipc_trial.hpp"

#include <fmt/core.h>

#include <array>
#include <csignal>
#include <optional>
#include <span>

#include "apps/gpushm/inspect/trial/trial.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/temp_directory.hpp"
#include "base/process/child_process.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using inspect::check;
using inspect::finding;
using inspect::verdict;
using inspect::way;

constexpr std::chrono::milliseconds trial_timeout{10'000};

/// One arrangement of the library, and what must work with it.
struct arrangement {
  const char* id;
  bool exporter_has_library;
  bool has_domain;
  std::vector<way> ways;
  const char* text;
  const char* rest;  ///< what does not work in it, and why
};

std::string subject_of(way sharing_way) {
  return sharing_way == way::unmodified         ? "memory"
         : sharing_way == way::unmodified_event ? "an event"
                                                : "a descriptor by PID";
}

base::child_process start_side(const ipc_trial_options& options,
                               bool has_library,
                               const std::string& socket) {
  base::child_options child;
  child.argv = {options.program.empty() ? base::executable_path() : options.program,
                "trial-worker",
                "--own-namespaces",
                "--own-files"};
  if (has_library) {
    child.argv.insert(child.argv.end(), {"--ipc-library", options.library});
    if (!socket.empty()) {
      child.argv.insert(child.argv.end(), {"--ipc-socket", socket});
    }
    child.environment.emplace_back("GPUSHM_IPC", "1");
  } else {
    // It may be preloaded into every program of this container.
    child.environment.emplace_back("GPUSHM_IPC", "0");
  }
  return base::child_process::start(child);
}

/// Appends the result of one way to `result`.
void add(check& result, way sharing_way, const trial_outcome& outcome) {
  std::string text = subject_of(sharing_way);
  if (outcome.result == trial_result::works) {
    text += " works (open " + app::duration_text(outcome.open_time) + ")";
  } else {
    text += fmt::format(" {}: {} in the {}",
                        to_string(outcome.result),
                        outcome.failure,
                        outcome.side.empty() ? "trial" : outcome.side);
    result.result = verdict::problem;
    result.why += (result.why.empty() ? "" : "; ") + outcome.text;
    const bool is_result = outcome.failure.starts_with("CUDA_ERROR_");
    result.remedy =
        fmt::format("GPUSHM_IPC_LOG=1 in the environment shows each call; gpushm explain \"{}\"",
                    is_result ? outcome.failure : outcome.text);
  }
  result.seen += (result.seen.empty() ? "" : "; ") + text;
}

check run_arrangement(const ipc_trial_options& options,
                      const arrangement& setting,
                      const std::string& socket,
                      base::deadline until) {
  check result = finding(verdict::ok, {});
  try {
    base::child_process exporter = start_side(
        options, setting.exporter_has_library, setting.has_domain ? socket : std::string());
    base::child_process importer =
        start_side(options, true, setting.has_domain ? socket : std::string());
    for (const way how : setting.ways) {
      trial_setup setup;
      setup.how = how;
      setup.exporter_device = options.device;
      const auto outcome =
          run_trial(exporter, importer, setup, std::min(until, base::deadline_in(trial_timeout)));
      add(result, how, outcome);
      if (outcome.exporter_pid != outcome.importer_pid) {
        result.why += (result.why.empty() ? "" : "; ") +
                      fmt::format("the PIDs differ ({} and {}), so this does not test equal ones",
                                  outcome.exporter_pid,
                                  outcome.importer_pid);
        result.result = result.result == verdict::problem ? verdict::problem : verdict::warning;
      }
    }
  } catch (const error& failure) {
    if (failure.code() == errc::permission_denied) {
      return finding(
          verdict::not_applicable,
          "not run: " + failure.cause(),
          "the trial needs namespaces of its own; \"gpushm matrix\" on the node tests it "
          "in containers");
    }
    result.result = verdict::problem;
    result.seen += (result.seen.empty() ? "" : "; ") + std::string("failed: ") + failure.what();
    result.remedy = "gpushm doctor";
  }
  result.seen = std::string(setting.text) + ": " + result.seen;
  if (result.result == verdict::ok) {
    result.why = setting.rest;
  }
  return result;
}

}  // namespace

std::vector<check> run_ipc_trials(const ipc_trial_options& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const base::deadline until = base::deadline_in(options.budget);
  const app::temp_directory directory("gpushm-ipc-trial");
  broker_options serving;
  serving.socket_path = directory.path() + "/socket";
  serving.domain = "trial";
  serving.accept_fake_chunks = options.accept_fake_chunks;
  const broker served = broker::start(serving);
  const auto arrangements = std::to_array<arrangement>(
      {{"ipc-trial",
        true,
        true,
        {way::unmodified, way::unmodified_event, way::unmodified_descriptor},
        "both sides, one domain",
        ""},
       {"ipc-no-domain",
        true,
        false,
        {way::unmodified, way::unmodified_event},
        "both sides, no domain",
        "events work only with GPUSHM_IPC_EVENTS=complete, as in this trial: the exporter waits "
        "for "
        "their work at the export and at each record; descriptors by PID need a domain"},
       {"ipc-one-side",
        false,
        false,
        {way::unmodified},
        "importing side only",
        "events and descriptors by PID need the library on both sides"}});
  std::vector<check> checks;
  for (const arrangement& each : arrangements) {
    check& made = checks.emplace_back(
        std::chrono::steady_clock::now() < until
            ? run_arrangement(options, each, served.socket_path(), until)
            : finding(verdict::warning, "not run: the time limit of the trials expired"));
    made.id = each.id;
    made.section = "trial with equal PIDs, in namespaces of its own each";
  }
  return checks;
}

}  // namespace gpushm::cli
