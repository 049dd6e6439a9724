// SPDX-License-Identifier: Apache-2.0
// `gpushm trial-worker` as PID 1 of containers: it reaps children, exits on SIGTERM, gives its
// children equal PIDs on both sides, and reports when it may not create namespaces.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/gpushm/inspect/trial/trial.hpp"
#include "apps/support/oci/container.hpp"
#include "gpushm/broker.hpp"
#include "tests/support/container/container.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm::base::deadline_in;
using gpushm::cli::trial_result;
using gpushm::cli::trial_setup;
using gpushm::inspect::way;
using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::exited;
using gpushm_testing::scaled_timeout;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::seconds;

constexpr const char* hello = "{\"way\":\"host\",\"order\":\"hello\"}\n";

class trial_in_container : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
  }
  [[nodiscard]] static container_options worker(std::vector<std::string> more = {}) {
    container_options options;
    options.argv = std::move(more);
    options.argv.insert(options.argv.begin(), "trial-worker");
    gpushm_testing::use_own_program(options, "gpushm");
    return options;
  }
};

TEST_F(trial_in_container, equal_pids_break_only_raw_handles) {
  const gpushm_testing::temp_dir domain(0755);
  const gpushm::fake::fake_gpus gpus;
  gpushm::broker_options serving;
  serving.socket_path = domain / "socket";
  serving.domain = "trial";
  serving.mode = 0666;
  serving.accept_fake_chunks = true;
  const auto broker = gpushm::broker::start(serving);
  ::signal(SIGPIPE, SIG_IGN);

  auto exporting = worker();
  for (const auto& variable : gpus.environment()) {
    exporting.env.push_back(variable);
  }
  exporting.mounts.push_back({gpus.root(), gpus.root(), true, true});
  exporting.mounts.push_back({domain.path(), "/run/domain", false, false});
  auto importing = exporting;
  importing.uid = 2000;
  importing.gid = 2000;
  const auto runc = gpushm_testing::find_runc().value();
  gpushm::app::oci::container exporter(runc, exporting, "gpushm-test-exporter");
  gpushm::app::oci::container importer(runc, importing, "gpushm-test-importer");
  for (const way how : gpushm::inspect::all_ways) {
    SCOPED_TRACE(to_string(how));
    trial_setup setup;
    setup.how = how;
    setup.exporter_device = gpus.gpus().front().uuid;
    setup.socket = "/run/domain/socket";
    const auto outcome = gpushm::cli::run_trial(
        exporter.process(), importer.process(), setup, deadline_in(scaled_timeout(seconds(30))));
    EXPECT_EQ(outcome.exporter_pid, 64 + static_cast<int>(how));
    EXPECT_EQ(outcome.exporter_pid, outcome.importer_pid);
    const bool fails = how == way::raw_legacy;
    EXPECT_EQ(outcome.result, fails ? trial_result::fails : trial_result::works) << outcome.text;
    EXPECT_EQ(outcome.failure, fails ? "CUDA_ERROR_INVALID_CONTEXT (201)" : "");
  }
  for (auto* each : {&exporter, &importer}) {
    each->process().close_input();
    const auto status = each->process().wait(deadline_in(scaled_timeout(seconds(10))));
    ASSERT_TRUE(status);
    EXPECT_EQ(*status, 0);
  }
}

TEST_F(trial_in_container, ends_on_sigterm_and_reaps) {
  auto box = container::start(worker());
  box.write(hello);
  const auto line = box.wait_for_line("\"ready\"", seconds(20));
  // Regardless of the ids of the runtime's threads: host is the last of five ways.
  EXPECT_EQ(json::parse(line).at("pid"), 68);
  box.write("{\"way\":\"host\",\"order\":\"kill\"}\n");
  const auto ended = json::parse(box.wait_for_line("\"ended\"", seconds(20)));
  EXPECT_EQ(ended.at("status"), "killed by signal 9 (Killed)");
  EXPECT_EQ(ended.at("crashed"), true);
  box.kill(SIGTERM);
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(0)) << box.all_output();
}

TEST_F(trial_in_container, refused_namespaces_are_reported) {
  auto box = container::start(worker({"--own-namespaces"}));
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(1)) << box.all_output();
  const auto reply = json::parse(box.text(stream::out));
  EXPECT_EQ(reply.at("event"), "failed");
  EXPECT_EQ(reply.at("text"),
            "neither privileged nor allowed to create a user namespace: Operation not permitted "
            "(EPERM)");
  EXPECT_EQ(reply.at("error").at("code"), "permission_denied");
}

TEST_F(trial_in_container, invalid_order_is_reported) {
  auto box = container::start(worker());
  box.write("{\"way\":\"carrier pigeon\",\"order\":\"hello\"}\nnonsense\n");
  EXPECT_EQ(json::parse(box.wait_for_line(".", seconds(20))).at("text"),
            "unknown order: {\"way\":\"carrier pigeon\",\"order\":\"hello\"}");
  EXPECT_EQ(json::parse(box.wait_for_line(".", seconds(20))).at("text"), "unknown order: nonsense");
  box.close_stdin();
  EXPECT_EQ(box.wait_exit(seconds(20)), exited(0)) << box.all_output();
}

}  // namespace
}  // namespace gpushm_tests
