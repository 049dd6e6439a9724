// SPDX-License-Identifier: Apache-2.0
// Memory of other allocators, shared by name and by ticket, between processes, also if both are PID
// 1 of their PID namespaces.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/share/share_world.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::eventually;
using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class share : public share_world {};

TEST_P(share, range_inside_allocation_is_same_memory) {
  agent exporter = start();
  agent importer = start();
  const std::string address =
      exporter.request("alloc " + kind() + " " + numbers({8 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 8 * mib, 1}));
  exporter.request("fill " + numbers({3 * mib + 512, 4 * mib, 2}));
  // Begins and ends inside chunks: the shared range starts at the pointer itself.
  EXPECT_EQ(first_number(exporter.request("share kv " + numbers({3 * mib + 512, 4 * mib}))),
            first_number(address) + 3 * mib + 512);
  EXPECT_THAT(importer.request("open kv"), EndsWith(numbers({4 * mib}) + " " + backend()));
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 2})), "0");
  importer.request("put " + numbers({4 * mib - 10, 10, 3}));
  exporter.request("fill " + numbers({3 * mib + 512, 100, 4}));
  EXPECT_EQ(importer.request("check " + numbers({0, 100, 4})), "0");
  EXPECT_EQ(importer.request("check " + numbers({100, 4 * mib - 110, 2})), "0");
  EXPECT_EQ(importer.request("state"), "live");
  // The other direction: the importer's writes are in the exporter's allocation, at these offsets
  // only.
  agent second = start();
  exporter.request("share whole " + numbers({0, 8 * mib}));
  second.request("open whole");
  EXPECT_EQ(second.request("check " + numbers({7 * mib + 502, 10, 3})), "0");
  EXPECT_EQ(second.request("check " + numbers({7 * mib + 512, mib - 512, 1})), "0");
}

TEST_P(share, importer_may_start_first) {
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({2 * mib, 0}));
  exporter.request("fill " + numbers({0, 2 * mib, 9}));
  importer.send("open-waiting kv");
  exporter.request("share kv " + numbers({0, 2 * mib}));
  EXPECT_THAT(importer.reply(), StartsWith("ok "));
  EXPECT_EQ(importer.request("check " + numbers({0, 2 * mib, 9})), "0");
}

TEST_P(share, opened_memory_outlives_exporter) {
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  importer.request("open kv");
  exporter.kill_and_wait();
  EXPECT_TRUE(
      eventually([&] { return importer.request("state") == "exporter-gone"; }, seconds(20)));
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
  agent late = start();
  if (is_bound()) {
    EXPECT_EQ(late.fails("open kv"),
              "peer_died open \"kv\": the process that shared this memory in domain default has "
              "died (start it again; an open with a timeout waits for the name)");
    // The name is free for its successor, and mappings of the old memory remain.
    agent successor = start();
    successor.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
    successor.request("fill " + numbers({0, 4 * mib, 6}));
    successor.request("share kv " + numbers({0, 4 * mib}));
    late.request("open kv");
    EXPECT_EQ(late.request("check " + numbers({0, 4 * mib, 6})), "0");
  } else {
    late.request("open kv");
    EXPECT_EQ(late.request("check " + numbers({0, 4 * mib, 5})), "0");
  }
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
}

TEST_P(share, unshared_memory_cannot_be_opened) {
  agent exporter = start();
  agent importer = start();
  agent late = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  importer.request("open kv");
  exporter.request("unshare kv");
  EXPECT_EQ(late.code("open kv"), "no_such_segment");
  EXPECT_EQ(importer.request("state"), "removed");
  EXPECT_EQ(exporter.request("shared-state kv"), "removed");
  EXPECT_EQ(
      exporter.fails("unshare kv"),
      "invalid_argument unshare \"kv\": this process does not share this memory, or no longer "
      "(call unshare once for each result of `client::share`)");
  exporter.request("drop kv");
  exporter.request("free");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
  EXPECT_TRUE(eventually([&] { return watch().list().empty(); }, seconds(4)));
}

TEST_P(share, reallocated_memory_is_not_opened_as_freed) {
  if (!is_bound()) {
    GTEST_SKIP() << "this memory is shared as descriptors: freeing it does not change the segment";
  }
  agent exporter = start();
  agent importer = start();
  agent late = start();
  const std::string address = exporter.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share old " + numbers({0, 4 * mib}));
  importer.request("open old");
  exporter.request("free");  // without unshare
  std::string again;
  for (int round = 0; round < 16 && again != address; ++round) {
    again = exporter.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  }
  if (GetParam().real) {  // the fake driver's addresses come from the kernel; its handles do repeat
    EXPECT_EQ(again, address) << "the allocator did not reuse the address";
  }
  EXPECT_EQ(late.fails("open old"),
            "gone_or_replaced open \"old\": its exporter has freed or replaced the memory without "
            "unshare (unshare before freeing, and share the new memory)");
  // That also removes the name.
  EXPECT_EQ(late.code("open old"), "no_such_segment");
  EXPECT_EQ(importer.request("state"), "removed");

  exporter.request("fill " + numbers({0, 4 * mib, 6}));
  exporter.request("share new " + numbers({0, 4 * mib}));
  importer.request("open new");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 6})), "0") << "old memory, new name";
  late.request("open new");
  EXPECT_EQ(late.request("check " + numbers({0, 4 * mib, 6})), "0");
  if (kind() == "malloc") {  // a freed pool block is reused while importers still map it
    importer.request("use 0");
    EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0") << "new memory, old name";
  }
}

TEST_P(share, reallocation_between_opens_is_detected) {
  if (!is_bound()) {
    GTEST_SKIP() << "this memory is shared as descriptors: freeing it does not change the segment";
  }
  agent exporter = start();
  agent late = start();
  const std::string address = exporter.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  exporter.request("share old " + numbers({0, 4 * mib}));
  exporter.request("free");
  std::string again;
  for (int round = 0; round < 16 && again != address; ++round) {
    again = exporter.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  }
  if (GetParam().real) {  // the fake driver's addresses come from the kernel; its handles do repeat
    ASSERT_EQ(again, address) << "the allocator did not reuse the address";
  }
  EXPECT_EQ(late.code("open old"), "gone_or_replaced");
}

TEST_P(share, same_process_gets_its_own_pointer) {
  agent self = start();
  const std::string address = self.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  self.request("fill " + numbers({0, 4 * mib, 5}));
  self.request("share kv " + numbers({mib, 2 * mib}));
  const std::string opened = self.request("open kv");
  EXPECT_EQ(first_number(opened), first_number(address) + mib);
  EXPECT_EQ(self.request("check " + numbers({0, 2 * mib, 5})), "0");
}

TEST_P(share, persistent_share_requires_shareable_descriptors) {
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  const std::string order = "share kv " + numbers({0, 4 * mib}) + " persistent";
  if (is_bound()) {
    EXPECT_EQ(
        exporter.fails(order),
        "invalid_argument share \"kv\": cudaMalloc and pool memory is bound to its process and "
        "cannot be persistent (share it as leased, or create a persistent segment and copy)");
    EXPECT_TRUE(watch().list().empty());
    return;
  }
  exporter.request(order);
  exporter.kill_and_wait();
  importer.request("open-waiting kv");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
  watch().remove("kv");
}

TEST_P(share, unresponsive_exporter_times_out_in_two_seconds) {
  if (!is_bound()) {
    GTEST_SKIP() << "opens of this memory do not involve the exporter";
  }
  if (GetParam().both_pid_1) {
    GTEST_SKIP() << "the signal would stop unshare, not the agent";
  }
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({2 * mib, 0}));
  exporter.request("share kv " + numbers({0, 2 * mib}));
  exporter.stop();
  EXPECT_EQ(importer.fails("open kv"),
            "timed_out open \"kv\": the process that shares this memory does not answer (check "
            "whether it is stopped or overloaded)");
  exporter.kill(SIGCONT);
  importer.request("open kv");
}

TEST_P(share, identical_exporters_are_distinguished) {
  agent first = start();
  agent second = start();
  agent importer = start();
  for (agent* each : {&first, &second}) {
    const int number = each == &first ? 1 : 2;
    each->request("alloc " + kind() + " " + numbers({4 * mib, 0}));
    each->request("fill " + numbers({0, 4 * mib, static_cast<std::uint64_t>(number)}));
    each->request("share kv" + std::to_string(number) + " " + numbers({0, 4 * mib}));
  }
  importer.request("open kv1");
  importer.request("open kv2");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 2})), "0");
  importer.request("use 0");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 1})), "0");
  // The first is replaced by one with the same PID in its namespace, the same addresses, and the
  // same name.
  const std::string kept =
      kind() == "malloc" ? first.request("export " + numbers({0, 4 * mib})) : "";
  first.kill_and_wait();
  agent third = start();
  third.request("alloc " + kind() + " " + numbers({4 * mib, 0}));
  third.request("fill " + numbers({0, 4 * mib, 3}));
  EXPECT_TRUE(
      eventually([&] { return importer.request("state") == "exporter-gone"; }, seconds(20)));
  if (is_bound()) {
    third.request("share kv1 " + numbers({0, 4 * mib}));
    agent fresh = start();
    fresh.request("open kv1");
    EXPECT_EQ(fresh.request("check " + numbers({0, 4 * mib, 3})), "0");
  }
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 1})), "0");
  if (!kept.empty()) {
    agent fresh = start();
    EXPECT_EQ(fresh.code("import " + kept), "peer_died");
  }
}

TEST_P(share, both_devices_of_importer_map_it) {
  if (kind() == "memfd") {
    GTEST_SKIP() << "host memory has no device";
  }
  if (GetParam().real && gpushm_testing::nvidia_minors().size() < 2) {
    GTEST_SKIP() << "needs two GPUs";
  }
  agent exporter = start(0);
  agent importer = start(1);
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({mib, 2 * mib}));
  importer.request("open kv 1");
  importer.request("open kv 0");
  EXPECT_EQ(importer.request("check " + numbers({0, 2 * mib, 5})), "0");
  importer.request("put " + numbers({0, mib, 6}));
  importer.request("use 0");
  EXPECT_EQ(importer.request("check " + numbers({0, mib, 6})), "0");
  importer.request("close");
  importer.request("use 1");
  EXPECT_EQ(importer.request("check " + numbers({mib, mib, 5})), "0");
}

TEST_P(share, recreated_context_is_detected) {
  if (kind() == "memfd") {
    GTEST_SKIP() << "host memory has no context";
  }
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  importer.request("open kv");
  importer.request("reset");
  importer.request("open kv");  // the first is still open, and its mapping may be lost
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
  importer.request("use 0");
  importer.request("close");
  importer.request("use 1");
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
}

TEST_P(share, forked_child_gets_an_error) {
  agent exporter = start();
  exporter.request("alloc " + kind() + " " + numbers({2 * mib, 0}));
  EXPECT_THAT(exporter.request("fork-share child " + numbers({2 * mib})),
              StartsWith("forked share \"child\": this process was forked from the one that "
                         "connected (connect in the child, and open what it needs there)"));
  if (kind() == "malloc") {
    const std::string bytes = exporter.request("export " + numbers({0, 2 * mib}));
    EXPECT_THAT(exporter.request("fork-import " + bytes), StartsWith("forked "));
  }
}

TEST_P(share, names_of_same_memory_are_independent) {
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share first " + numbers({0, 3 * mib}));
  exporter.request("share second " + numbers({mib, 3 * mib}));
  importer.request("open first");
  importer.request("open second");
  EXPECT_EQ(importer.request("check " + numbers({0, 3 * mib, 5})), "0");
  importer.request("put " + numbers({0, mib, 6}));
  importer.request("use 0");
  EXPECT_EQ(importer.request("check " + numbers({mib, mib, 6})), "0");
  importer.request("close");
  importer.request("use 1");
  EXPECT_EQ(importer.request("check " + numbers({0, mib, 6})), "0");
  exporter.request("unshare first");
  importer.request("open second");
  EXPECT_EQ(importer.request("check " + numbers({mib, 2 * mib, 5})), "0");
}

TEST_P(share, small_allocations_of_one_block_are_distinguished) {
  if (kind() != "malloc") {
    GTEST_SKIP() << "only cudaMalloc puts several allocations into one block";
  }
  agent exporter = start();
  agent importer = start();
  for (const std::uint64_t number : {1U, 2U, 3U}) {  // earlier allocations stay
    exporter.request("alloc malloc " + numbers({1000, 0}));
    exporter.request("fill " + numbers({0, 1000, number}));
    exporter.request("share kv" + std::to_string(number) + " " + numbers({100, 900}));
  }
  for (const std::uint64_t number : {3U, 1U, 2U}) {
    importer.request("open kv" + std::to_string(number));
    EXPECT_EQ(importer.request("check " + numbers({0, 900, number})), "0");
  }
}

// ---- without a broker ----

TEST_P(share, ticket_carries_cuda_malloc_memory) {
  agent exporter = start();
  agent importer = start();
  const std::string address =
      exporter.request("alloc " + kind() + " " + numbers({8 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 8 * mib, 1}));
  exporter.request("fill " + numbers({3 * mib, 2 * mib, 2}));
  if (kind() != "malloc") {
    EXPECT_EQ(exporter.fails("export " + numbers({3 * mib, 2 * mib})),
              "not_exportable export: this memory is shared as file descriptors, which bytes "
              "cannot carry (share it through a broker and export the segment (client::share, "
              "export_segment), or through a file (file_export))");
    return;
  }
  const std::string bytes = exporter.request("export " + numbers({3 * mib, 2 * mib}));
  EXPECT_THAT(importer.request("import " + bytes), EndsWith(numbers({2 * mib}) + " cuda-ipc"));
  EXPECT_EQ(importer.request("check " + numbers({0, 2 * mib, 2})), "0");
  EXPECT_EQ(importer.request("state"), "unknown");
  EXPECT_EQ(first_number(exporter.request("import " + bytes)), first_number(address) + 3 * mib);
  EXPECT_EQ(importer.fails("import-elsewhere " + bytes)
                .find("peer_unreachable open: it was shared on "
                      "another machine, or before this machine was rebooted (boot id "
                      "00000000-0000-4000-8000-000000000000, "
                      "here "),
            0U);
  agent late = start();
  exporter.kill_and_wait();
  EXPECT_EQ(importer.request("check " + numbers({0, 2 * mib, 2})), "0");
  const std::string refused = late.fails("import " + bytes);
  if (GetParam().both_pid_1) {
    EXPECT_THAT(refused,
                StartsWith("peer_died open: the handle is no longer valid: its exporter has exited "
                           "or freed the memory (cuIpcOpenMemHandle: "));
    EXPECT_THAT(refused, EndsWith("(share the memory again from a running process)"));
  } else {
    EXPECT_THAT(refused,
                StartsWith("peer_died import: the process that exported it is gone: its process "));
    EXPECT_THAT(refused, EndsWith(" has ended (export it again from a running process)"));
  }
}

TEST_P(share, segment_ticket_refers_to_its_broker) {
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({mib, 2 * mib}));
  const std::string bytes = exporter.request("export-segment kv");
  importer.request("import " + bytes);
  EXPECT_EQ(importer.request("check " + numbers({0, 2 * mib, 5})), "0");
  EXPECT_EQ(importer.request("state"), "live");
  exporter.request("unshare kv");
  agent late = start();
  EXPECT_EQ(late.code("import " + bytes), "no_such_segment");
  exporter.request("share kv " + numbers({0, mib}));
  EXPECT_EQ(late.code("import " + bytes), "gone_or_replaced");
  // Also a legacy handle is not used without the broker, which alone knows what it refers to now.
  const std::string last = exporter.request("export-segment kv");
  broker_.reset();
  EXPECT_EQ(late.code("import " + last), "peer_died");
}

TEST_P(share, random_tickets_are_refused) {
  if (kind() != "malloc") {
    GTEST_SKIP() << "only these tickets reach the driver";
  }
  agent exporter = start();
  agent importer = start();
  exporter.request("alloc malloc " + numbers({2 * mib, 0}));
  const std::string bytes = exporter.request("export " + numbers({0, 2 * mib}));
  importer.send("import-random 100000 " + bytes);
  const std::string codes = importer.reply(seconds(240));
  EXPECT_THAT(codes, StartsWith("ok "));
  EXPECT_THAT(codes, ::testing::Not(HasSubstr("accepted"))) << codes;
  EXPECT_THAT(codes, HasSubstr("invalid_ticket=50000")) << codes;
  importer.request("import " + bytes);  // the importer still works
}

constexpr share_setting all[] = {{"malloc", false, false},
                                 {"malloc", false, true},
                                 {"vmm", false, false},
                                 {"vmm", false, true},
                                 {"pool", false, false},
                                 {"pool", false, true},
                                 {"memfd", false, false},
                                 {"memfd", false, true},
                                 {"malloc", true, false},
                                 {"malloc", true, true},
                                 {"vmm", true, false},
                                 {"vmm", true, true},
                                 {"pool", true, false},
                                 {"pool", true, true}};
INSTANTIATE_TEST_SUITE_P(, share, ::testing::ValuesIn(all), name_of);

// ---- partial failures, and cases without a driver ----

class share_watched : public share_world {
 protected:
  [[nodiscard]] agent start_with(const std::string& variable, const std::string& value) const {
    agent_settings how = settings();
    how.env.emplace_back(variable, value);
    return start(how);
  }
  static std::size_t lines_of(const std::string& path) {
    std::ifstream file(path);
    return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }
};

TEST_P(share_watched, failed_import_leaves_nothing) {
  const std::map<std::string, std::vector<std::string>> calls = {
      {"malloc", {"cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2"}},
      {"vmm",
       {"cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}},
      {"pool",
       {"cuMemPoolImportFromShareableHandle",
        "cuMemPoolImportPointer",
        "cuMemPoolSetAccess",
        "cuMemGetAddressRange_v2"}}};
  agent exporter = start();
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  for (const std::string& call : calls.at(kind())) {
    agent importer = start_with("GPUSHM_FAKE_FAIL", call + ":1=999");
    const pid_t pid = std::stoi(importer.request("pid"));
    importer.request("alloc pageable " +
                     numbers({4096, 0}));  // so that descriptors of the driver are already open
    const auto before = gpushm_testing::count_descriptors(pid);
    const std::string failure = importer.fails("open kv");
    EXPECT_THAT(failure, StartsWith("driver_error open \"kv\": ")) << call;
    EXPECT_THAT(failure, HasSubstr("CUDA_ERROR_UNKNOWN (999)")) << call;
    EXPECT_TRUE(eventually([&] { return watch().stat("kv").leases == 1; }, seconds(4))) << call;
    EXPECT_EQ(gpushm_testing::total(gpushm_testing::count_descriptors(pid)),
              gpushm_testing::total(before))
        << call;
    importer.request("open kv");
    EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0") << call;
  }
}

TEST_P(share_watched, driver_and_exporter_overlap_in_an_open) {
  const std::map<std::string, std::string> opens = {{"malloc", "cuIpcOpenMemHandle_v2"},
                                                    {"pool", "cuMemPoolImportPointer"}};
  if (!opens.contains(kind())) {
    GTEST_SKIP() << "opens of this memory do not involve the exporter";
  }
  constexpr std::chrono::milliseconds slow{1000};
  const std::string after = ":*=after" + std::to_string(slow.count());
  agent exporter = start();
  agent importer = start_with("GPUSHM_FAKE_FAIL", opens.at(kind()) + after);
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 4 * mib, 5}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  for (int i = 0; i < 2; ++i) {
    exporter.stop();
    std::jthread replies([&] {
      std::this_thread::sleep_for(slow);
      exporter.kill(SIGCONT);
    });
    const auto begin = gpushm_testing::clock::now();
    importer.request("open kv");
    EXPECT_LT(gpushm_testing::clock::now() - begin,
              gpushm_testing::scaled_timeout(2 * slow - std::chrono::milliseconds(100)));
    EXPECT_GE(gpushm_testing::clock::now() - begin, slow);
    EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 5})), "0");
    importer.request("close");
  }
}

TEST_P(share_watched, unconfirmed_memory_is_unmapped) {
  const std::map<std::string, std::pair<std::string, std::string>> calls = {
      {"malloc", {"cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"}},
      {"pool", {"cuMemPoolImportPointer", "cuMemFree_v2"}}};
  if (!calls.contains(kind())) {
    GTEST_SKIP() << "opens of this memory do not involve the exporter";
  }
  const std::string trace = folder_ / "trace";
  const auto count = [&](const std::string& call) {
    std::ifstream file(trace);
    std::size_t found = 0;
    for (std::string line; std::getline(file, line);) {
      found += line.find(" " + call + " ") != std::string::npos ? 1U : 0U;
    }
    return found;
  };
  agent exporter = start();
  agent importer = start_with("GPUSHM_FAKE_TRACE", trace);
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  exporter.stop();
  EXPECT_EQ(importer.code("open kv"), "timed_out");
  EXPECT_EQ(count(calls.at(kind()).first), 1U) << "mapped while the exporter confirms";
  EXPECT_EQ(count(calls.at(kind()).second), 1U);
  EXPECT_EQ(watch().stat("kv").leases, 1U);
  exporter.kill(SIGCONT);
  importer.request("open kv");
  EXPECT_EQ(count(calls.at(kind()).first), 2U) << "once per open";
}

TEST_P(share_watched, own_handle_needs_no_driver_call) {
  if (kind() != "malloc") {
    GTEST_SKIP() << "only these tickets have a handle";
  }
  const std::string trace = folder_ / "trace";
  agent self = start_with("GPUSHM_FAKE_TRACE", trace);
  const std::string address = self.request("alloc malloc " + numbers({4 * mib, 0}));
  const std::string bytes = self.request("export " + numbers({mib, mib}));
  const std::size_t before = lines_of(trace);
  EXPECT_GT(before, 0U);
  EXPECT_EQ(first_number(self.request("import " + bytes)), first_number(address) + mib);
  EXPECT_EQ(lines_of(trace), before);
}

INSTANTIATE_TEST_SUITE_P(,
                         share_watched,
                         ::testing::Values(share_setting{"malloc", false, false},
                                           share_setting{"vmm", false, false},
                                           share_setting{"pool", false, false}),
                         name_of);

// ---- memory that cannot be shared, and importers that may not open it ----

class share_refused : public share_world {};

TEST_P(share_refused, unexportable_memory_is_refused_with_remedy) {
  const struct {
    const char* kind;
    const char* text;
  } cases[] = {
      {"default-pool",
       "it is memory of a pool that cannot be exported: cudaMallocAsync's default pool, a pool "
       "without descriptor handles, or one imported from another process (allocate it with "
       "cudaMalloc, or from a pool created with cudaMemHandleTypePosixFileDescriptor; in PyTorch "
       "set "
       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of backend:cudaMallocAsync)"},
      {"pool-plain",
       "it is memory of a pool that cannot be exported: cudaMallocAsync's default pool, a pool "
       "without descriptor handles, or one imported from another process (allocate it with "
       "cudaMalloc, or from a pool created with cudaMemHandleTypePosixFileDescriptor; in PyTorch "
       "set "
       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of backend:cudaMallocAsync)"},
      {"vmm-plain",
       "its physical memory was allocated without a descriptor handle type, or was imported from "
       "another process (allocate it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; in PyTorch set "
       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; share imported memory from the process "
       "that allocated it)"},
      {"pinned",
       "it is private host memory (malloc, new, pinned memory or a "
       "mapping that is not of a single memfd) (create a segment on device host and use its "
       "memory, or "
       "map a memfd that is sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL)"},
      {"pageable",
       "it is private host memory (malloc, new, pinned memory or a "
       "mapping that is not of a single memfd) (create a segment on device host and use its "
       "memory, or "
       "map a memfd that is sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL)"},
      {"memfd-unsealed",
       "the memfd is not sealed: any process that has it could shrink it while others use it (seal "
       "it with "
       "F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL)"},
      {"memfd-closed",
       "the mapped memfd is not open for reading and writing in this process (keep "
       "its descriptor open until the memory is shared)"}};
  for (const auto& each : cases) {
    agent exporter = start();
    exporter.request("alloc " + std::string(each.kind) + " " + numbers({2 * mib, 0}));
    EXPECT_EQ(exporter.fails("share kv " + numbers({0, mib})),
              std::string("not_exportable share \"kv\": ") + each.text)
        << each.kind;
  }
  EXPECT_TRUE(watch().list().empty()) << "invalid input has no effect";
}

TEST_P(share_refused, range_beyond_allocation_is_refused) {
  agent exporter = start();
  exporter.request("alloc malloc " + numbers({4 * mib, 0}));
  EXPECT_EQ(exporter.fails("share kv " + numbers({mib, 4 * mib})),
            "not_exportable share \"kv\": 4194304 bytes exceed the allocation, which ends "
            "3145728 bytes after the pointer (share at most one allocation at a time)");
  EXPECT_EQ(exporter.code("share kv " + numbers({0, 0})), "invalid_argument");
  agent chunks = start();
  chunks.request("alloc vmm " + numbers({4 * mib, 2 * mib}));
  EXPECT_EQ(chunks.code("share kv " + numbers({mib, 4 * mib})), "not_exportable");
  EXPECT_TRUE(watch().list().empty());
}

TEST_P(share_refused, few_descriptors_suffice_for_many_chunks) {
  if (!GetParam().real) {
    GTEST_SKIP() << "the fake driver itself needs a descriptor for each chunk";
  }
  agent_settings few = settings();
  few.open_files = 320;
  agent exporter = start(few);
  agent importer = start();
  exporter.request("alloc vmm " + numbers({600 * 2 * mib, 2 * mib}));
  exporter.request("fill " + numbers({599 * 2 * mib, 2 * mib, 7}));
  exporter.request("share kv " + numbers({mib, 599 * 2 * mib}));
  importer.request("open kv");
  EXPECT_EQ(importer.request("check " + numbers({598 * 2 * mib + mib, mib, 7})), "0");
  EXPECT_EQ(watch().stat("kv").chunks, 600U);
}

INSTANTIATE_TEST_SUITE_P(,
                         share_refused,
                         ::testing::Values(share_setting{"any", false, false},
                                           share_setting{"any", true, false}),
                         name_of);

class share_hidden : public share_world {};

// The driver itself would return unclear errors, and crash for a pool.
TEST_P(share_hidden, hidden_gpu_is_named_before_the_driver_is_called) {
  agent exporter = start();
  agent_settings without = settings();
  for (auto& [variable, value] : without.env) {
    if (variable == "GPUSHM_DEV_ROOT") {
      value = fake_->make_dev_root("second-only", {1});
    }
  }
  agent importer = start(without);
  exporter.request("alloc " + kind() + " " + numbers({2 * mib, 0}));
  exporter.request("share kv " + numbers({0, 2 * mib}));
  const auto& gpu = watch().stat("kv").device;
  const std::string text = importer.fails("open kv");
  EXPECT_THAT(text,
              StartsWith("device_not_visible open \"kv\": this process may not use " + gpu.uuid +
                         " at PCI " + gpu.pci_address + ": the device node does not exist: open("));
  EXPECT_THAT(text,
              HasSubstr("/nvidia0): No such file or directory (ENOENT) (start the container"));
  if (kind() == "malloc") {
    EXPECT_EQ(importer.code("import " + exporter.request("export " + numbers({0, 2 * mib}))),
              "device_not_visible");
  }
  EXPECT_EQ(importer.request("pid").empty(), false) << "it must not crash";
  EXPECT_TRUE(eventually([&] { return watch().stat("kv").leases == 1; }, seconds(4)));
}

INSTANTIATE_TEST_SUITE_P(,
                         share_hidden,
                         ::testing::Values(share_setting{"malloc", false, false},
                                           share_setting{"vmm", false, false},
                                           share_setting{"pool", false, true}),
                         name_of);

}  // namespace
}  // namespace gpushm_tests
