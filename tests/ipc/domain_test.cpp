// SPDX-License-Identifier: Apache-2.0
// CUDA IPC between programs that nobody changed, each PID 1 of its own namespaces, with
// libgpushm-ipc.so and one domain: events are the driver's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

#include "gpushm/broker.hpp"
#include "gpushm/client.hpp"
#include "tests/ipc/isolated.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests::ipc {
namespace {

using gpushm_testing::eventually;
using ::testing::HasSubstr;
using ::testing::Not;

class ipc_domain : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_namespaces()) {
      GTEST_SKIP() << *reason;
    }
    serve();
  }

  void serve() {
    gpushm::broker_options options;
    options.socket_path = socket();
    options.accept_fake_chunks = true;
    options.mode = 0666;
    broker_.emplace(gpushm::broker::start(options));
    EXPECT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  }

  [[nodiscard]] std::string socket() const { return socket_; }

  [[nodiscard]] peer<gpushm_testing::child> start(uid_t uid = 0,
                                                  const std::string& domain = {}) const {
    peer_options options;
    options.completes_events = false;
    options.uid = uid;
    options.env = {{"GPUSHM_SOCKET", socket()}};
    if (!domain.empty()) {
      options.env.emplace_back("GPUSHM_IPC_DOMAIN", domain);
    }
    return start_peer(gpus_, options);
  }

  [[nodiscard]] std::size_t registered() const {
    gpushm::connect_options options;
    options.socket_path = socket();
    return gpushm::client::connect(options).list(".fd/").size();
  }

  gpushm_testing::temp_dir directory_;
  std::string socket_ = directory_.path() + "/socket";
  std::optional<gpushm::broker> broker_;
  gpushm::fake::fake_gpus gpus_;
};

TEST_F(ipc_domain, waits_are_those_of_the_driver) {
  auto first = start(1000);
  auto second = start(2000);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success) << second.messages();
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success)
      << first.messages() << second.messages();
  for (unsigned round = 2; round < 5; ++round) {  // recorded after the handle was taken
    const gate closed;
    ASSERT_EQ(first.run("block 0 " + closed.path()), success);
    ASSERT_EQ(first.run("fill 0 " + std::to_string(round)), success);
    ASSERT_EQ(first.run("record 0"), success) << "returns before its work";
    EXPECT_EQ(second.run("query 0"), not_ready);
    ASSERT_EQ(second.run("wait 0"), success);
    EXPECT_EQ(second.wrong_words(1, round - 1), "0");
    closed.open();
    EXPECT_EQ(second.run("sync"), success);
    EXPECT_EQ(second.wrong_words(1, round), "0");
    EXPECT_EQ(second.run("query 0"), success);
  }
  // The importer answers on the same event.
  ASSERT_EQ(second.run("fill 1 9"), success);
  ASSERT_EQ(second.run("record 0"), success);
  ASSERT_EQ(first.run("wait 0"), success);
  ASSERT_EQ(first.run("sync"), success);
  EXPECT_EQ(first.wrong_words(0, 9), "0");
  EXPECT_EQ(first.ask("capture-record 0").result, success) << "captures need no completion";
  EXPECT_EQ(registered(), 1U) << "one file for all events";
  first.exit();
  second.exit();
  EXPECT_TRUE(eventually([&] { return registered() == 0; }, limit));
}

TEST_F(ipc_domain, events_of_two_exporters_are_different) {
  auto first = start();
  auto other = start();
  auto second = start();
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(other.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  ASSERT_EQ(second.run("event-open 1 " + other.value_of("event-handle 0")), success);
  EXPECT_EQ(registered(), 2U);
  const gate closed;
  ASSERT_EQ(first.run("block 0 " + closed.path()), success);
  ASSERT_EQ(first.run("record 0"), success);
  ASSERT_EQ(other.run("record 0"), success);
  ASSERT_EQ(other.run("sync"), success);
  EXPECT_EQ(second.run("query 1"), success);
  EXPECT_EQ(second.run("query 0"), not_ready);
  closed.open();
  EXPECT_EQ(second.run("event-sync 0"), success);
}

TEST_F(ipc_domain, events_of_a_dead_exporter_are_errors) {
  auto first = start();
  auto second = start();
  ASSERT_EQ(first.run("event 0"), success);
  const std::string handle = first.value_of("event-handle 0");
  EXPECT_EQ(registered(), 1U);
  first.process().kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return registered() == 0; }, limit));
  EXPECT_NE(second.run("event-open 0 " + handle), success);
  EXPECT_THAT(second.messages(), HasSubstr("cannot reach"));
}

TEST_F(ipc_domain, wrong_names_of_domains_lead_to_no_other_domain) {
  for (const std::string& name : {std::string(".."), std::string("a/b"), std::string(200, 'x')}) {
    auto first = start(0, name);
    ASSERT_EQ(first.run("event 0"), success);
    first.value_of("event-handle 0");
    EXPECT_EQ(registered(), 0U) << name;
    EXPECT_THAT(first.messages(), HasSubstr("GPUSHM_IPC_DOMAIN is not the name of a domain"));
  }
}

TEST_F(ipc_domain, brokers_of_the_user_are_found_as_clients_find_them) {
  broker_.reset();
  peer_options options;
  options.completes_events = false;
  options.env = {{"XDG_RUNTIME_DIR", directory_.path()}};
  const std::string domain = directory_.path() + "/gpushm/d/default";
  ASSERT_TRUE(std::filesystem::create_directories(domain));
  {
    // The directory of a broker that has ended is not a domain: without one, nothing is reported.
    auto alone = start_peer(gpus_, options);
    ASSERT_EQ(alone.run("event 0"), success);
    alone.value_of("event-handle 0");
    EXPECT_THAT(alone.messages(), Not(HasSubstr("no use of the domain")));
  }
  socket_ = domain + "/socket";
  serve();
  auto first = start_peer(gpus_, options);
  auto second = start_peer(gpus_, options);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success)
      << first.messages() << second.messages();
  EXPECT_EQ(registered(), 1U);
}

TEST_F(ipc_domain, without_broker_handles_stay_as_they_are) {
  broker_.reset();
  auto first = start();
  auto second = start();
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success) << "needs no broker";
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
  EXPECT_THAT(first.messages(), HasSubstr("no use of the domain"));
  serve();  // the next export finds it
  ASSERT_TRUE(eventually(
      [&] {
        EXPECT_EQ(first.run("event 1"), success);
        const bool opened =
            second.run("event-open 1 " + first.value_of("event-handle 1")) == success;
        EXPECT_EQ(first.run("event-destroy 1"), success);
        return opened;
      },
      limit));
}

}  // namespace
}  // namespace gpushm_tests::ipc
