// SPDX-License-Identifier: Apache-2.0
// CUDA IPC between programs that nobody changed in real containers: different uids, no capability,
// private PID, IPC, network, UTS, mount and cgroup namespaces, both PID 1.
#include "tests/support/container/container.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/ipc/peer.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace gpushm_tests::ipc {
namespace {

using gpushm_testing::container;
using gpushm_testing::container_options;

class ipc_container : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
  }

  [[nodiscard]] peer<container> start(uid_t uid, bool preloaded = true) const {
    container_options options;
    auto argv = program_argv(GetParam());
    options.argv.assign(argv.begin() + 1, argv.end());
    gpushm_testing::use_own_program(options, std::string("ipc_program_") + GetParam());
    options.uid = uid;
    options.gid = uid;
    options.mounts.push_back({gpus_.root(), gpus_.root(), true, true});
    options.mounts.push_back({closed_.directory(), closed_.directory(), true, false});
    for (const auto& variable : gpus_.environment()) {
      options.env.push_back(variable);
    }
    if (preloaded) {
      options.mounts.push_back({library(), "/opt/libgpushm-ipc.so", false, false});
      options.env.emplace_back("LD_PRELOAD", "/opt/libgpushm-ipc.so");
      options.env.emplace_back("GPUSHM_IPC_EVENTS", "complete");
    }
    return peer(container::start(options));
  }

  gate closed_;

 private:
  gpushm::fake::fake_gpus gpus_;
};

TEST_P(ipc_container, memory_and_events) {
  auto first = start(1000);
  auto second = start(3000);
  EXPECT_EQ(first.ask("pid").result, 1);
  EXPECT_EQ(second.ask("pid").result, 1);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success) << second.messages();
  ASSERT_EQ(first.open_memory(1, second.exported_memory(2)), success) << first.messages();
  EXPECT_EQ(second.wrong_words(1, 1), "0");
  EXPECT_EQ(first.wrong_words(1, 2), "0");
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  ASSERT_EQ(first.run("block 0 " + closed_.path()), success);
  ASSERT_EQ(first.run("fill 0 3"), success);
  first.send("record 0");
  EXPECT_EQ(second.wrong_words(1, 1), "0");
  closed_.open();
  ASSERT_EQ(first.wait("record").result, success);
  EXPECT_EQ(second.run("wait 0"), success);
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(second.wrong_words(1, 3), "0");
  first.exit();
  second.exit();
}

TEST_P(ipc_container, fail_without_library) {
  auto first = start(1000, false);
  auto second = start(3000, false);
  EXPECT_EQ(second.open_memory(1, first.exported_memory(1)), invalid_context);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
}

INSTANTIATE_TEST_SUITE_P(all,
                         ipc_container,
                         ::testing::Values("linked", "proc_address"),
                         [](const auto& chosen) { return std::string(chosen.param); });

}  // namespace
}  // namespace gpushm_tests::ipc
