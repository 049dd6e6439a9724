// SPDX-License-Identifier: Apache-2.0
// CUDA IPC between programs that nobody changed, each PID 1 of its own namespaces, with
// libgpushm-ipc.so preloaded and without a domain: memory is opened, and events are completed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <string>
#include <thread>

#include "base/files/sanitizers.hpp"
#include "tests/ipc/isolated.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests::ipc {
namespace {

using gpushm_testing::eventually;
using ::testing::HasSubstr;

class ipc_pair : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_namespaces()) {
      GTEST_SKIP() << *reason;
    }
  }
  [[nodiscard]] peer<gpushm_testing::child> start(const peer_options& options = {}) const {
    return start_peer(gpus_, options);
  }

 private:
  gpushm::fake::fake_gpus gpus_;
};

/// The ways to the driver.
class ipc_reach : public ipc_pair, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (gpushm::base::under_sanitizer && GetParam() == std::string("python")) {
      GTEST_SKIP() << "the fake driver needs the sanitizers' run-time library, which Python lacks";
    }
    ipc_pair::SetUp();
  }
  [[nodiscard]] peer_options options() const {
    peer_options chosen;
    chosen.reach = GetParam();
    return chosen;
  }
};

TEST_P(ipc_reach, memory_opens_in_both_directions) {
  auto first = start(options());
  auto second = start(options());
  const std::string of_first = first.exported_memory(0x11111111);
  const std::string of_second = second.exported_memory(0x22222222);
  ASSERT_EQ(second.open_memory(1, of_first), success) << second.messages();
  ASSERT_EQ(first.open_memory(1, of_second), success) << first.messages();
  EXPECT_EQ(second.wrong_words(1, 0x11111111), "0");
  EXPECT_EQ(first.wrong_words(1, 0x22222222), "0");
  // What the importer writes is the exporter's.
  EXPECT_EQ(second.run("fill 1 7"), success);
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(first.wrong_words(0, 7), "0");
  EXPECT_EQ(second.run("close 1"), success);
  EXPECT_EQ(first.run("close 1"), success);
  first.exit();
  second.exit();
}

TEST_P(ipc_reach, fails_without_library) {
  auto without = options();
  without.preloaded = false;
  auto first = start(without);
  auto second = start(without);
  EXPECT_EQ(second.open_memory(1, first.exported_memory(1)), invalid_context);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
}

TEST_P(ipc_reach, fails_if_switched_off) {
  auto off = options();
  off.env = {{"GPUSHM_IPC", "0"}};
  auto first = start(off);
  auto second = start(off);
  const std::string handle = first.exported_memory(1);
  EXPECT_EQ(second.open_memory(1, handle), invalid_context);
  EXPECT_EQ(handle.substr(112), "0000000000000000") << "a tag";
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
}

TEST_P(ipc_reach, event_recorded_before_its_handle_was_taken) {
  auto first = start(options());
  auto second = start(options());
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  const gate closed;
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(first.run("block 0 " + closed.path()), success);
  ASSERT_EQ(first.run("fill 0 2"), success);
  ASSERT_EQ(first.run("record 0"), success);
  // Without a domain the handle is given away when the work is done.
  first.send("event-handle 0");
  EXPECT_EQ(second.wrong_words(1, 1), "0");
  closed.open();
  const reply handle = first.wait("event-handle");
  ASSERT_EQ(handle.result, success) << first.messages();
  ASSERT_EQ(second.run("event-open 0 " + handle.value), success) << second.messages();
  EXPECT_EQ(second.run("wait 0"), success);
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(second.wrong_words(1, 2), "0");
  first.exit();
  second.exit();
}

TEST_P(ipc_reach, event_recorded_after_its_handle_was_taken) {
  auto first = start(options());
  auto second = start(options());
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  const gate closed;
  ASSERT_EQ(first.run("block 0 " + closed.path()), success);
  ASSERT_EQ(first.run("fill 0 2"), success);
  first.send("record 0");
  // The consumer continues when the producer says that it has recorded, as programs do. Time for
  // those that say so too early: nothing else shows that a record has not returned.
  std::thread opens_later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(second.wrong_words(1, 1), "0");
    closed.open();
  });
  const reply recorded = first.wait("record");
  opens_later.join();
  EXPECT_EQ(recorded.result, success);
  EXPECT_EQ(second.run("wait 0"), success);
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(second.wrong_words(1, 2), "0");
  first.exit();
  second.exit();
}

INSTANTIATE_TEST_SUITE_P(all,
                         ipc_reach,
                         ::testing::Values("linked", "dlsym", "proc_address", "python", "module"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_F(ipc_pair, own_handles_keep_their_error) {
  auto first = start();
  EXPECT_EQ(first.open_memory(1, first.exported_memory(1)), invalid_context);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(first.run("event-open 1 " + first.value_of("event-handle 0")), invalid_context);
  first.exit();
}

TEST_F(ipc_pair, second_exporter_of_equal_size_is_not_the_first) {
  auto first = start();
  auto second = start();
  auto importer = start();
  const std::string of_first = first.exported_memory(1);
  const std::string of_second = second.exported_memory(2);
  // The importer exports, too: memory of the same size.
  const std::string own = importer.exported_memory(3);
  ASSERT_EQ(importer.open_memory(1, of_first), success);
  ASSERT_EQ(importer.open_memory(2, of_second), success);
  ASSERT_EQ(importer.open_memory(3, of_first), success) << "a second time";
  EXPECT_EQ(importer.open_memory(4, own), invalid_context);
  EXPECT_EQ(importer.wrong_words(1, 1), "0");
  EXPECT_EQ(importer.wrong_words(2, 2), "0");
  EXPECT_EQ(importer.wrong_words(3, 1), "0");
  EXPECT_EQ(importer.run("close 1"), success);
  EXPECT_EQ(importer.wrong_words(3, 1), "0") << "the other open keeps it";
  EXPECT_EQ(importer.run("close 3"), success);
  EXPECT_EQ(importer.run("close 2"), success);
}

TEST_F(ipc_pair, forked_exporters_and_importers) {
  peer_options forked;
  forked.forked = true;
  auto first = start(forked);
  auto second = start(forked);
  const int pid = first.ask("pid").result;
  EXPECT_NE(pid, 1);
  EXPECT_EQ(second.ask("pid").result, pid);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(5)), success);
  EXPECT_EQ(second.wrong_words(1, 5), "0");
  EXPECT_EQ(first.open_memory(2, first.value_of("handle 0")), invalid_context);
  // A PID that differs is left alone.
  auto parent = start();
  ASSERT_EQ(parent.open_memory(1, first.value_of("handle 0")), success);
  EXPECT_EQ(parent.wrong_words(1, 5), "0");
}

TEST_F(ipc_pair, program_that_replaces_itself_is_another_exporter) {
  auto first = start();
  auto second = start();
  const std::string before = first.exported_memory(5);
  ASSERT_EQ(second.open_memory(1, before), success);
  EXPECT_EQ(second.run("close 1"), success);
  first.send("exec");
  EXPECT_EQ(first.process().wait_for_line("^started", limit), "started 0");
  EXPECT_EQ(first.ask("pid").result, 1);
  const std::string after = first.exported_memory(6);
  EXPECT_NE(after.substr(112), before.substr(112)) << "the tag";
  EXPECT_NE(second.open_memory(1, before), success) << "its memory is gone";
  ASSERT_EQ(second.open_memory(2, after), success);
  EXPECT_EQ(second.wrong_words(2, 6), "0");
}

TEST_F(ipc_pair, handles_of_dead_exporters_stay_errors) {
  auto first = start();
  auto killed = start();
  auto importer = start();
  const std::string of_first = first.exported_memory(1);
  const std::string of_killed = killed.exported_memory(2);
  ASSERT_EQ(importer.open_memory(1, of_killed), success);
  first.exit();
  killed.process().kill(SIGKILL);
  EXPECT_EQ(importer.open_memory(2, of_first), invalid_handle);
  EXPECT_EQ(importer.wrong_words(1, 2), "0") << "L2";
  EXPECT_EQ(importer.run("close 1"), success);
  EXPECT_TRUE(eventually(
      [&] {
        const int result = importer.open_memory(3, of_killed);
        return result == success ? importer.run("close 3") != success : result == invalid_handle;
      },
      limit));
  // The next exporter may get handles that differ in the tag only (L4).
  auto next = start();
  ASSERT_EQ(importer.open_memory(4, next.exported_memory(3)), success);
  EXPECT_EQ(importer.wrong_words(4, 3), "0");
}

TEST_F(ipc_pair, freed_memory_is_an_error) {
  auto first = start();
  auto second = start();
  const std::string handle = first.exported_memory(1);
  ASSERT_EQ(first.run("free 0"), success);
  EXPECT_EQ(second.open_memory(1, handle), invalid_handle);
}

TEST_F(ipc_pair, other_uids) {
  peer_options user;
  user.uid = 1234;
  auto first = start(user);
  user.uid = 4321;
  auto second = start(user);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(9)), success) << second.messages();
  EXPECT_EQ(second.wrong_words(1, 9), "0");
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  ASSERT_EQ(first.run("fill 0 8"), success);
  ASSERT_EQ(first.run("record 0"), success);
  EXPECT_EQ(second.run("wait 0"), success);
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(second.wrong_words(1, 8), "0");
}

TEST_F(ipc_pair, importer_records_for_exporter) {
  auto first = start();
  auto second = start();
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  for (int round = 2; round < 12; ++round) {  // the importer answers, as rings of buffers do
    ASSERT_EQ(second.run("fill 1 " + std::to_string(round)), success);
    ASSERT_EQ(second.run(round % 2 == 0 ? "record 0" : "record-flags 0"), success);
    ASSERT_EQ(first.run("wait 0"), success);
    ASSERT_EQ(first.run("sync"), success);
    ASSERT_EQ(first.wrong_words(0, static_cast<unsigned>(round)), "0");
  }
}

TEST_F(ipc_pair, capture_of_exported_event_is_refused) {
  auto first = start();
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(first.ask("capture-record 0").result, success) << "no other process has it";
  ASSERT_EQ(first.run("event 1"), success);
  first.value_of("event-handle 1");
  const reply refused = first.ask("capture-record 1");
  EXPECT_EQ(refused.result, not_supported);
  EXPECT_EQ(refused.value, "0") << "the end of the capture";
  EXPECT_THAT(first.messages(), HasSubstr("is refused in graphs and captures"));
  EXPECT_EQ(first.run("record 1"), success) << "outside a capture";
  EXPECT_EQ(first.run("event-destroy 1"), success);
  first.exit();
}

TEST_F(ipc_pair, event_after_a_destroyed_one) {
  auto first = start();
  auto second = start();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(first.run("event 0"), success);
    ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
    ASSERT_EQ(first.run("record 0"), success);
    EXPECT_EQ(second.run("event-sync 0"), success);
    EXPECT_EQ(second.run("query 0"), success);
    EXPECT_EQ(first.run("event-destroy 0"), success);
    EXPECT_EQ(second.run("event-destroy 0"), success);
  }
  // The address of the last one may be used again: this one is not exported.
  const gate closed;
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(first.run("block 0 " + closed.path()), success);
  EXPECT_EQ(first.run("record 0"), success) << "does not wait";
  EXPECT_EQ(first.run("query 0"), not_ready);
  closed.open();
  EXPECT_EQ(first.run("event-sync 0"), success);
}

TEST_F(ipc_pair, many_events) {
  auto first = start();
  auto second = start();
  for (int each = 0; each < 16; ++each) {
    const std::string slot = std::to_string(each);
    ASSERT_EQ(first.run("event " + slot), success);
    ASSERT_EQ(second.run("event-open " + slot + " " + first.value_of("event-handle " + slot)),
              success);
  }
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  for (unsigned each = 0; each < 16; ++each) {
    const std::string slot = std::to_string(each);
    ASSERT_EQ(first.run("fill 0 " + std::to_string(100 + each)), success);
    ASSERT_EQ(first.run("record " + slot), success);
    ASSERT_EQ(second.run("wait " + slot), success);
    ASSERT_EQ(second.run("sync"), success);
    EXPECT_EQ(second.wrong_words(1, 100 + each), "0");
  }
}

TEST_F(ipc_pair, only_importer_has_library) {
  peer_options without;
  without.preloaded = false;
  auto first = start(without);
  auto second = start();
  ASSERT_EQ(second.open_memory(1, first.exported_memory(4)), success);
  EXPECT_EQ(second.wrong_words(1, 4), "0");
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context)
      << "its records would not be waited for";
}

TEST_F(ipc_pair, only_exporter_has_library) {
  peer_options without;
  without.preloaded = false;
  auto first = start();
  auto second = start(without);
  EXPECT_EQ(second.open_memory(1, first.exported_memory(4)), invalid_context);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
}

TEST_F(ipc_pair, one_namespace) {
  peer_options shared;
  shared.isolated = false;
  peer_options without = shared;
  without.preloaded = false;
  auto first = start(shared);
  auto second = start(shared);
  auto third = start(without);
  const std::string memory = first.exported_memory(4);
  ASSERT_EQ(first.run("event 0"), success);
  const std::string handle = first.value_of("event-handle 0");
  for (auto* each : {&second, &third}) {  // the tag disturbs nobody
    ASSERT_EQ(each->open_memory(1, memory), success);
    EXPECT_EQ(each->wrong_words(1, 4), "0");
    ASSERT_EQ(each->run("event-open 0 " + handle), success);
    ASSERT_EQ(first.run("record 0"), success);
    EXPECT_EQ(each->run("event-sync 0"), success);
  }
  EXPECT_EQ(first.open_memory(1, memory), invalid_context);
  first.exit();
  second.exit();
  third.exit();
}

// A program whose events work is not changed: its records do not wait.
TEST_F(ipc_pair, events_of_one_namespace_stay_the_drivers) {
  peer_options shared;
  shared.isolated = false;
  shared.completes_events = false;
  auto first = start(shared);
  auto second = start(shared);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  ASSERT_EQ(first.run("event 0"), success);
  ASSERT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), success);
  const gate closed;
  ASSERT_EQ(first.run("block 0 " + closed.path()), success);
  ASSERT_EQ(first.run("fill 0 2"), success);
  ASSERT_EQ(first.run("record 0"), success) << "returns before its work";
  EXPECT_EQ(second.run("query 0"), not_ready);
  ASSERT_EQ(second.run("wait 0"), success);
  closed.open();
  EXPECT_EQ(second.run("sync"), success);
  EXPECT_EQ(second.wrong_words(1, 2), "0");
  first.exit();
  second.exit();
}

TEST_F(ipc_pair, events_without_domain_are_an_error) {
  peer_options alone;
  alone.completes_events = false;
  auto first = start(alone);
  auto second = start(alone);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("event-open 0 " + first.value_of("event-handle 0")), invalid_context);
  EXPECT_THAT(second.messages(), HasSubstr("GPUSHM_IPC_EVENTS=complete"));
}

TEST_F(ipc_pair, opens_and_closes_leave_nothing) {
  constexpr int count = gpushm::base::under_sanitizer ? 2'000 : 20'000;
  auto first = start();
  auto second = start();
  const std::string handle = first.exported_memory(1);
  ASSERT_EQ(first.run("event 0"), success);
  const std::string event = first.value_of("event-handle 0");
  const auto cycle = [&](int times) {
    EXPECT_EQ(second.run("cycle 0 " + handle + " " + std::to_string(times)), success);
    EXPECT_EQ(second.run("cycle-event 0 " + event + " " + std::to_string(times)), success);
  };
  cycle(1);
  const std::string descriptors = second.value_of("descriptors");
  const std::string mappings = second.value_of("mappings");
  cycle(count);
  EXPECT_EQ(second.value_of("descriptors"), descriptors);
  EXPECT_EQ(second.value_of("mappings"), mappings);
}

TEST_F(ipc_pair, handles_that_no_driver_made_are_refused) {
  auto first = start();
  auto second = start();
  const std::string memory = first.exported_memory(1);
  EXPECT_EQ(second.run("open-random 0 " + memory + " 2000"), success);
  ASSERT_EQ(first.run("event 0"), success);
  EXPECT_EQ(second.run("open-random 0 " + first.value_of("event-handle 0") + " 2000"), success);
  EXPECT_EQ(second.open_memory(1, std::string(128, '0')), invalid_value);
  EXPECT_EQ(second.open_memory(1, std::string(128, 'f')), invalid_value);
  second.exit();
}

TEST_F(ipc_pair, deepbind_passes_the_library_by) {
  if (gpushm::base::under_sanitizer) {
    GTEST_SKIP() << "the sanitizers refuse RTLD_DEEPBIND";
  }
  peer_options deepbind;
  deepbind.reach = "deepbind";
  auto first = start(deepbind);
  auto second = start(deepbind);
  const std::string handle = first.exported_memory(1);
  EXPECT_EQ(handle.substr(112), "0000000000000000") << "a tag";
  EXPECT_EQ(second.open_memory(1, handle), invalid_context) << "the driver's own error";
  // An importer that is not passed by opens it.
  auto third = start();
  ASSERT_EQ(third.open_memory(1, handle), success);
  EXPECT_EQ(third.wrong_words(1, 1), "0");
}

TEST_F(ipc_pair, log_names_each_call) {
  peer_options logs;
  logs.env = {{"GPUSHM_IPC_LOG", "1"}};
  auto first = start(logs);
  auto second = start(logs);
  ASSERT_EQ(second.open_memory(1, first.exported_memory(1)), success);
  first.exit();
  second.exit();
  EXPECT_THAT(first.messages(), HasSubstr("cuIpcGetMemHandle: tagged"));
  EXPECT_THAT(second.messages(), HasSubstr("cuIpcOpenMemHandle: PID 1,"));
}

}  // namespace
}  // namespace gpushm_tests::ipc
