// SPDX-License-Identifier: Apache-2.0
// Upgrades of the broker's DaemonSet: the controller's and the kubelet's rules
// (fake_daemon_set.hpp) with the values of the manifest, and real keepers and brokers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process/signals.hpp"
#include "domains/protocol/private_socket.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/deploy/fake_daemon_set.hpp"
#include "tests/deploy/manifest.hpp"
#include "tests/docs/docs_text.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::program_kept_by;
using gpushm_testing::scaled_timeout;
using pod = fake_daemon_set::pod;

constexpr std::chrono::seconds patience{60};

int seconds_at(const node& node, std::initializer_list<std::string_view> keys) {
  return std::stoi(text_at(node, keys));
}

/// A thread stops when it runs for the next time, so a busy machine needs a while for SIGSTOP.
bool is_stopped(pid_t pid) {
  const std::filesystem::path tasks("/proc/" + std::to_string(pid) + "/task");
  return std::ranges::all_of(std::filesystem::directory_iterator(tasks), [](const auto& task) {
    std::ifstream file(task.path() / "stat");
    std::string text;
    std::getline(file, text);
    return text.find(") T ") != std::string::npos;
  });
}

class upgrade : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_source_tree()) {
      GTEST_SKIP() << "the source tree is not on this machine";
    }
    gpushm_testing::make_run_directory(run_dir_);
    manifests_ = read_manifests(source_file("deploy/kustomize/base/brokerd.yaml"), "brokerd.yaml");
    const node& spec = *pod_spec(manifests_.at(0));
    const node& container = *elements(find(spec, {"containers"})).at(0);
    rules_ = {.readiness_period = seconds_at(container, {"readinessProbe", "periodSeconds"}),
              .readiness_failures = seconds_at(container, {"readinessProbe", "failureThreshold"}),
              .stop_pause = seconds_at(container, {"lifecycle", "preStop", "sleep", "seconds"}),
              .grace = seconds_at(spec, {"terminationGracePeriodSeconds"})};
    const auto arguments = texts(find(container, {"args"}));
    const auto after = [&](const char* option) {
      return std::stoi(*(std::find(arguments.begin(), arguments.end(), option) + 1));
    };
    longest_takeover_ = after("--takeover-timeout") + after("--stop-timeout");
    std::copy(arguments.begin(),
              std::find(arguments.begin(), arguments.end(), "--"),
              std::back_inserter(for_keeper_));
  }
  void TearDown() override {
    if (HasFailure() && set_) {
      for (pod& each : set_->pods()) {
        std::printf("%s: %s%s\n",
                    each.version.c_str(),
                    each.output.c_str(),
                    each.container ? each.container->output().all_output().c_str() : "");
      }
    }
  }

  /// With the first pod, and a persistent segment that no process has open: it is lost with the
  /// broker and its keeper.
  void install() {
    set_.emplace(
        rules_,
        [this](const std::string& version) { return start(version); },
        [this](const child& container) { return serves(container); });
    set_->set_version("first");
    ASSERT_TRUE(synced([&] { return set_->pods().front().is_ready; }));
    auto user = gpushm_testing::patient_client(socket_);
    auto created = user.create(
        "weights",
        {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.write(0, std::as_bytes(std::span("contents")));
    created.publish();
  }
  void expect_nothing_is_lost() const {
    auto user = gpushm_testing::patient_client(socket_);
    std::string found(8, ' ');
    user.open("weights").read(0, std::as_writable_bytes(std::span(found)));
    EXPECT_EQ(found, "contents");
  }
  /// Controller and kubelet run until this is the case.
  template <typename Predicate>
  [[nodiscard]] bool synced(Predicate predicate) {
    return eventually(
        [&] {
          set_->sync();
          return predicate();
        },
        patience);
  }
  /// The only pod has this version, is ready, and serves.
  [[nodiscard]] bool is_only(const std::string& version) {
    const auto& pods = set_->pods();
    return pods.size() == 1 && pods.front().version == version && pods.front().is_ready &&
           pods.front().container && serves(*pods.front().container);
  }
  /// The time in which pods that are deleted end.
  [[nodiscard]] bool becomes_only(const std::string& version) {
    return synced([&] {
      if (std::ranges::all_of(set_->pods(),
                              [](const pod& each) { return each.deleted_at || each.is_ready; })) {
        set_->pass(5);
      }
      return is_only(version);
    });
  }
  /// Starts an upgrade to a version that hangs. Returns whether that has everything.
  [[nodiscard]] bool starts_to_hang() {
    set_->set_version("hangs");
    return synced([&] {
      auto& pods = set_->pods();
      const pod& next = pods.back();
      if (!next.output.empty()) {
        return true;  // on a slow machine, the takeover has failed already
      }
      return pods.size() == 2 && next.container && program_kept_by(next.container->pid()) != 0 &&
             program_kept_by(pods.front().container->pid()) == 0;
    });
  }
  void expect_survives_failures();

  std::vector<manifest> manifests_;
  fake_daemon_set::settings rules_;
  int longest_takeover_ = 0;        ///< in seconds
  std::string hang_timeout_ = "1";  ///< --takeover-timeout of the version that hangs
  std::chrono::milliseconds probe_timeout_ = scaled_timeout(5s);
  std::optional<fake_daemon_set> set_;
  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";

 private:
  /// With the manifest's arguments, in this test's directory.
  [[nodiscard]] child start(const std::string& version) {
    std::vector<std::string> arguments;
    for (std::string each : for_keeper_) {
      if (each.starts_with("/run/gpushm/")) {
        each = run_dir_ + each.substr(std::string_view("/run/gpushm").size());
      } else if (each.starts_with("/tmp/")) {
        each = run_dir_ + "/keeper/notify-" + std::to_string(started_++);
      }
      arguments.push_back(std::move(each));
    }
    // A start may be slow here; the watchdog would replace a broker that a test has stopped.
    arguments.insert(arguments.end(),
                     {"--takeover-timeout",
                      version == "hangs" ? hang_timeout_ : "60",
                      "--takeover-pause",
                      "1000000",
                      "--watchdog",
                      "0"});
    auto options = gpushm_testing::brokerd_command(run_dir_, {"--domain", "default"}, arguments);
    if (version == "hangs" || version == "fails") {
      auto& argv = options.argv;
      argv.erase(std::find(argv.begin(), argv.end(), "--") + 1, argv.end());
      if (version == "hangs") {
        argv.insert(argv.end(), {"/bin/sleep", "3600"});
      } else {
        argv.emplace_back("/bin/false");
      }
    }
    return child::start(options);
  }
  /// As `gpushm-brokerd check`, which tells containers apart by their control groups.
  [[nodiscard]] bool serves(const child& container) const {
    const pid_t own = program_kept_by(container.pid());
    if (own == 0 || gpushm_testing::program_of(own) != "gpushm-brokerd") {
      return false;
    }
    const gpushm::domains::private_socket broker(run_dir_);
    try {
      static_cast<void>(broker.read(probe_timeout_));
      return broker.listening_process(probe_timeout_) == own;
    } catch (const gpushm::error&) {
      return false;
    }
  }

  std::vector<std::string> for_keeper_;
  int started_ = 0;
};

/// The pod of a version whose takeover fails is started again and again, until that is rolled back.
void upgrade::expect_survives_failures() {
  pod& first = set_->pods().front();
  pod& failing = set_->pods().back();
  ASSERT_TRUE(synced([&] {
    return failing.output.find("the previous keeper continues") != std::string::npos &&
           serves(*first.container);
  }));
  set_->pass(2 * rules_.readiness_period * rules_.readiness_failures);
  ASSERT_TRUE(synced([&] {
    set_->pass(1);
    return failing.output.find("the previous keeper refuses") != std::string::npos;
  }));
  EXPECT_EQ(set_->pods().size(), 2U);
  EXPECT_TRUE(first.is_ready);
  EXPECT_FALSE(first.deleted_at);
  EXPECT_FALSE(failing.is_ready);
  EXPECT_THAT(
      failing.output,
      testing::ContainsRegex("refuses: the last takeover has failed( \\(the program (is not ready "
                             "in time|has ended with status 1)\\))?; the next one can"));
  expect_nothing_is_lost();
  set_->set_version("first");
  ASSERT_TRUE(becomes_only("first"));
  expect_nothing_is_lost();
}

TEST_F(upgrade, takes_over) {
  install();
  for (const std::string version : {"second", "first"}) {  // and `rollout undo`
    set_->set_version(version);
    ASSERT_TRUE(becomes_only(version));
    expect_nothing_is_lost();
  }
}

TEST_F(upgrade, to_a_version_that_hangs_falls_back) {
  install();
  set_->pass(rules_.readiness_period - 5);  // a probe fails during the takeover
  ASSERT_TRUE(starts_to_hang());
  set_->pass(longest_takeover_);
  EXPECT_TRUE(set_->pods().front().is_ready);
  EXPECT_FALSE(set_->pods().front().deleted_at);
  expect_survives_failures();
}

TEST_F(upgrade, to_a_version_that_fails_falls_back) {
  install();
  set_->set_version("fails");
  ASSERT_TRUE(synced([&] { return set_->pods().size() == 2; }));
  expect_survives_failures();
}

/// The rule that makes rare probes necessary: with those of before, the old pod does not survive a
/// takeover that hangs.
TEST_F(upgrade, deletes_an_old_pod_that_is_not_ready) {
  rules_ = {.readiness_period = 2, .readiness_failures = 3, .stop_pause = 0, .grace = 15};
  hang_timeout_ = "60";
  install();
  ASSERT_TRUE(starts_to_hang());
  set_->pass(longest_takeover_);
  EXPECT_TRUE(set_->pods().front().deleted_at);
}

TEST_F(upgrade, of_a_broker_that_hangs_takes_over) {
  install();
  probe_timeout_ = 200ms;
  pod& first = set_->pods().front();
  const pid_t hanging = program_kept_by(first.container->pid());
  ASSERT_NE(hanging, 0);
  gpushm::base::signal_process(hanging, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return is_stopped(hanging); }, patience));
  set_->pass(rules_.readiness_period * (rules_.readiness_failures + 1));
  EXPECT_FALSE(first.is_ready);
  set_->set_version("second");
  ASSERT_TRUE(becomes_only("second"));
  expect_nothing_is_lost();
}

TEST_F(upgrade, is_not_needed_to_delete_a_pod) {
  install();
  set_->delete_pod(set_->pods().front());
  ASSERT_TRUE(becomes_only("first"));
  expect_nothing_is_lost();
}

}  // namespace
}  // namespace gpushm_tests
