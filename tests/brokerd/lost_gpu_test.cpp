// SPDX-License-Identifier: Apache-2.0
// A GPU is reported lost through the private socket: members see it in the state of their segments,
// and so they do after the broker was killed. On fake GPUs.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "domains/protocol/private_socket.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;

const std::string reason = "the GPU that had this memory was lost, in domain default";

class lost_gpu : public testing::Test {
 protected:
  void SetUp() override {
    broker_.emplace(run_dir_,
                    std::vector<std::string>{"--domain", "default", "--accept-fake-chunks"});
    static_cast<void>(gpushm_testing::patient_client(socket_));
  }
  void TearDown() override {
    if (HasFailure() && broker_) {
      std::printf("%s\n", broker_->keeper().output().all_output().c_str());
    }
  }
  /// Answers a line with a line (programs/holding_member.cpp).
  [[nodiscard]] child member(const std::string& device) const {
    child started =
        child::start({.argv = {gpushm_testing::own_program("holding_member"), socket_, device},
                      .env = fake_.environment()});
    EXPECT_NE(started.wait_for_line("ready", 60s), "") << started.output().all_output();
    return started;
  }
  static std::string does(child& child, const std::string& command) {
    child.write(command + "\n");
    const std::string reply = child.wait_for_line("ok.*|failed.*", 60s);
    return reply.substr(0, 3) == "ok " ? reply.substr(3) : reply;
  }
  static bool becomes(child& child, const std::string& name, const std::string& state) {
    return eventually([&] { return does(child, "state " + name) == state; }, 60s);
  }
  /// Why an open of the name fails.
  [[nodiscard]] std::string why_not(const std::string& name) const {
    try {
      static_cast<void>(gpushm_testing::patient_client(socket_).open(name));
    } catch (const gpushm::error& why) {
      EXPECT_EQ(why.code(), gpushm::errc::gone_or_replaced) << why.what();
      return std::string(why.cause());
    }
    return "no error";
  }
  [[nodiscard]] gpushm_testing::run_result report(const std::string& uuid,
                                                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {
        gpushm_testing::own_program("gpushm"), "lost-gpu", uuid, "--run-dir", run_dir_};
    argv.insert(argv.end(), more.begin(), more.end());
    return gpushm_testing::run_program({.argv = std::move(argv)});
  }

  static gpushm::fake::fake_gpus_options two_gpus() {
    gpushm::fake::fake_gpus_options options;
    options.gpus = 2;
    return options;
  }

  const gpushm::fake::fake_gpus fake_{two_gpus()};
  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_;
};

TEST_F(lost_gpu, ends_its_segments_also_for_the_next_broker) {
  child creator = member("0");
  child other = member("1");
  child reader = member("0");
  const std::string lost = does(creator, "create w persistent 1");
  ASSERT_EQ(does(creator, "publish w"), "ok");
  ASSERT_NE(does(other, "create o persistent 2"), "");
  ASSERT_EQ(does(other, "publish o"), "ok");
  ASSERT_EQ(does(reader, "open w"), lost);

  const auto done = report(fake_.gpus().front().uuid);
  EXPECT_TRUE(done.status.success()) << done.err;
  for (child* const each : {&creator, &reader}) {
    EXPECT_EQ(does(*each, "state w"), "device-lost") << "before the answer to the report";
  }
  EXPECT_EQ(does(other, "state o"), "live");
  auto client = gpushm_testing::patient_client(socket_);
  EXPECT_TRUE(client.list("w").empty());
  EXPECT_EQ(client.list("o").size(), 1U);
  EXPECT_EQ(why_not("w"), reason);

  EXPECT_TRUE(broker_->kill());
  EXPECT_TRUE(eventually(
      [&] { return gpushm_testing::patient_client(socket_).list("o").size() == 1; }, 60s));
  EXPECT_TRUE(becomes(reader, "w", "device-lost")) << "of the next broker";
  EXPECT_TRUE(becomes(creator, "w", "device-lost"));
  EXPECT_TRUE(becomes(other, "o", "live"));
  EXPECT_EQ(why_not("w"), reason);

  // After a reset of the GPU, there is memory on it again.
  EXPECT_EQ(does(creator, "close w"), "ok");
  const std::string again = does(creator, "create w persistent 3");
  ASSERT_EQ(does(creator, "publish w"), "ok");
  EXPECT_NE(again, lost);
  EXPECT_EQ(does(reader, "open w"), again);
  EXPECT_EQ(does(reader, "holds w 3"), "same");
  EXPECT_EQ(does(reader, "state w"), "live");
}

/// The Xid is in the error of each open, also of a name that this client has opened before, and
/// also of the next broker's.
TEST_F(lost_gpu, opens_report_the_xid) {
  child creator = member("0");
  child reader = member("0");
  const std::string lost = does(creator, "create w persistent 1");
  ASSERT_EQ(does(creator, "publish w"), "ok");
  ASSERT_EQ(does(reader, "open w"), lost);
  ASSERT_EQ(does(reader, "close w"), "ok");  // its lease stays in the cache

  auto watcher = gpushm_testing::patient_client(socket_);
  auto events = watcher.subscribe("");
  const auto done = report(fake_.gpus().front().uuid, {"--xid", "79"});
  EXPECT_TRUE(done.status.success()) << done.err;
  const auto event = events.next(60s);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, gpushm::event_kind::removed);
  EXPECT_EQ(event->name, "w");
  EXPECT_EQ(event->loss, gpushm::loss_cause::xid);
  EXPECT_EQ(event->xid, 79U);
  const std::string why = reason + ": Xid 79 (the GPU has fallen off the bus)";
  EXPECT_EQ(why_not("w"), why);
  const std::string again = does(reader, "open w");
  EXPECT_NE(again.find("Xid 79 (the GPU has fallen off the bus)"), std::string::npos) << again;
  EXPECT_TRUE(broker_->kill());
  EXPECT_TRUE(eventually([&] { return why_not("w") == why; }, 60s));

  const auto wrong = report(fake_.gpus().front().uuid, {"--xid", "0"});
  EXPECT_FALSE(wrong.status.success());
  EXPECT_NE(wrong.err.find("--xid"), std::string::npos) << wrong.err;
}

TEST_F(lost_gpu, wrong_reports_are_refused_and_change_nothing) {
  child creator = member("0");
  ASSERT_NE(does(creator, "create w persistent 1"), "");
  EXPECT_TRUE(report("GPU-of-another-node").status.success());
  const auto wrong = gpushm_testing::run_program({.argv = {gpushm_testing::own_program("gpushm"),
                                                           "lost-gpu",
                                                           fake_.gpus().front().uuid,
                                                           "--pci-address",
                                                           "nowhere",
                                                           "--run-dir",
                                                           run_dir_}});
  EXPECT_FALSE(wrong.status.success());
  EXPECT_NE(wrong.err.find("it is not a PCI address"), std::string::npos) << wrong.err;
  EXPECT_NE(report("").err.find("it has no UUID"), std::string::npos);
  EXPECT_EQ(does(creator, "state w"), "live");
}

}  // namespace
