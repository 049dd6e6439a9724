// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/self_test.hpp"

#include <csignal>
#include <memory>
#include <optional>

#include "apps/support/temp_directory.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

using inspect::way;

constexpr std::string_view out_of_time = "the time limit of the self-test expired";

/// Host memory does not depend on a GPU, so it has separate trials.
std::vector<way> ways_on(const std::string& device) {
  if (device == "host") {
    return {way::host};
  }
  std::vector<way> ways;
  for (const way each : inspect::all_ways) {
    if (each != way::host) {
      ways.push_back(each);
    }
  }
  return ways;
}

trial_outcome not_run(std::string why) {
  trial_outcome outcome;
  outcome.failure = why;
  outcome.text = std::move(why);
  return outcome;
}

/// A broker for the trials, or the reason why it could not be started. Thread-safety: distinct
/// objects: safe; shared objects: unsafe.
class selftest_broker {
 public:
  explicit selftest_broker(bool accept_fake_chunks) {
    try {
      directory_ = std::make_unique<app::temp_directory>("gpushm-selftest");
      broker_options options;
      options.socket_path = directory_->path() + "/socket";
      options.domain = "selftest";
      options.accept_fake_chunks = accept_fake_chunks;
      broker_ = broker::start(options);
    } catch (const error& failure) {
      problem_ = failure.what();
    }
  }
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  [[nodiscard]] std::string socket() const { return broker_ ? broker_->socket_path() : ""; }

 private:
  std::unique_ptr<app::temp_directory> directory_;
  std::optional<broker> broker_;
  std::string problem_;
};

/// Both programs of a trial.
struct worker_pair {
  base::child_process exporter;
  base::child_process importer;
};

base::child_process start_worker(const selftest_options& options, bool own_namespaces) {
  base::child_options child;
  child.argv = {options.program.empty() ? base::executable_path() : options.program,
                "trial-worker"};
  if (own_namespaces) {
    child.argv.emplace_back("--own-namespaces");
  }
  return base::child_process::start(child);
}

/// The trials of one device, with either equal or different PIDs. Thread-safety: distinct objects:
/// safe; shared objects: unsafe.
class round {
 public:
  round(const selftest_options& options,
        const selftest_broker& broker,
        base::deadline until,
        std::string device,
        bool equal_pids)
      : options_(options),
        broker_(broker),
        until_(until),
        device_(std::move(device)),
        equal_pids_(equal_pids) {}

  [[nodiscard]] selftest_finding run(way sharing_way) {
    selftest_finding finding;
    finding.device = device_;
    finding.how = sharing_way;
    finding.equal_pids = equal_pids_;
    finding.outcome = attempt(sharing_way);
    finding.not_permitted = not_permitted_;
    finding.expected = expect(sharing_way, finding.outcome);
    return finding;
  }

 private:
  [[nodiscard]] trial_outcome attempt(way sharing_way) {
    if (!not_permitted_.empty()) {
      return not_run(not_permitted_);
    }
    if (std::chrono::steady_clock::now() >= until_) {
      return not_run(std::string(out_of_time));
    }
    if (sharing_way != way::raw_legacy && !broker_.problem().empty()) {
      return not_run(broker_.problem());
    }
    trial_setup setup;
    setup.how = sharing_way;
    setup.exporter_device = device_;
    setup.socket = broker_.socket();
    try {
      if (!pair_) {
        pair_ =
            worker_pair{start_worker(options_, equal_pids_), start_worker(options_, equal_pids_)};
      }
      return run_trial(pair_->exporter,
                       pair_->importer,
                       setup,
                       std::min(until_, base::deadline_in(options_.trial_timeout)));
    } catch (const error& failure) {
      pair_.reset();  // unusable; the next way starts a new pair
      if (failure.code() == errc::permission_denied && equal_pids_) {
        not_permitted_ = failure.cause();
        return not_run(not_permitted_);
      }
      if (failure.object() != "exporter" && failure.object() != "importer") {
        return not_run(failure.what());  // the processes could not be started
      }
      trial_outcome outcome;
      outcome.result = trial_result::fails;
      outcome.side = failure.object();
      outcome.failure = to_string(failure.code());
      outcome.text = failure.what();
      return outcome;
    }
  }

  [[nodiscard]] inspect::prediction expect(way sharing_way, const trial_outcome& outcome) const {
    inspect::party exporter;
    inspect::party importer;
    exporter.pid = outcome.exporter_pid;
    importer.pid = outcome.importer_pid;
    if (outcome.exporter_pid == 0 || outcome.importer_pid == 0) {
      exporter.pid = 2;
      importer.pid = equal_pids_ ? 2 : 3;
    }
    // Permissions for nodes do not matter: CUDA lists the GPU here, and both sides have the same.
    return inspect::predict(sharing_way, exporter, importer, 0);
  }

  const selftest_options& options_;
  const selftest_broker& broker_;
  base::deadline until_;
  std::string device_;
  bool equal_pids_;
  std::optional<worker_pair> pair_;
  std::string not_permitted_;
};

}  // namespace

bool selftest_finding::as_expected() const {
  if (outcome.result == trial_result::works) {
    return expected.works;
  }
  if (outcome.result == trial_result::crashes) {
    return expected.crashes;
  }
  return outcome.result == trial_result::fails && !expected.works && !expected.crashes &&
         outcome.failure == expected.failure;
}

bool selftest_finding::unexpected() const {
  return outcome.result != trial_result::not_run && !as_expected();
}

std::vector<selftest_finding> run_selftest(const selftest_options& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const base::deadline until = base::deadline_in(options.budget);
  const selftest_broker broker(options.accept_fake_chunks);
  std::vector<std::string> devices{"host"};
  devices.insert(devices.end(), options.gpus.begin(), options.gpus.end());
  std::vector<selftest_finding> findings;
  for (const std::string& device : devices) {
    for (const bool equal_pids : {true, false}) {
      round trials(options, broker, until, device, equal_pids);
      for (const way how : ways_on(device)) {
        findings.push_back(trials.run(how));
      }
    }
  }
  return findings;
}

}  // namespace gpushm::cli
