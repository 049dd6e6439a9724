// SPDX-License-Identifier: Apache-2.0
// Exporter and importer are each PID 1 of a runc container: private PID, IPC, network, UTS, mount
// and cgroup namespaces, uid 1000 and 3000, no capability. They share the domain's directory and
// GPU 0.
#include <optional>
#include <string>

#include "tests/share/share_world.hpp"
#include "tests/support/container/support.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::eventually;
using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* domain_inside = "/run/gpushm/d/default";

class share_container : public share_world {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    options_.mode = 0666;
    share_world::SetUp();
  }

  /// Starts an agent that may open only the GPUs with these minors.
  [[nodiscard]] agent contain(uid_t user, const std::vector<int>& minors) {
    container_options options;
    gpushm_testing::use_own_program(options, "share_agent");
    options.uid = user;
    options.gid = user;
    options.mounts.push_back({folder_.path(), domain_inside, false, false});
    if (fake_) {
      options.mounts.push_back({fake_->root(), fake_->root(), true, true});
      options.env = fake_->environment();
      options.env.emplace_back("GPUSHM_DEV_ROOT",
                               fake_->make_dev_root("of-" + std::to_string(user), minors));
    } else {
      gpushm_testing::allow_real_gpus(options, minors);
    }
    agent started(container::start(options));
    started.request(std::string("connect ") + domain_inside + "/socket");
    started.request("device 0");
    EXPECT_EQ(started.request("pid"), "1");
    return started;
  }
};

TEST_P(share_container, memory_is_shared_if_both_are_pid_1) {
  const int gpu = GetParam().real ? gpushm_testing::nvidia_minors().front() : 0;
  agent exporter = contain(1000, {gpu});
  agent importer = contain(3000, {gpu});
  exporter.request("alloc " + kind() + " " + numbers({8 * mib, 2 * mib}));
  exporter.request("fill " + numbers({0, 8 * mib, 1}));
  exporter.request("fill " + numbers({3 * mib, 4 * mib, 2}));
  exporter.request("share kv " + numbers({3 * mib, 4 * mib}));
  EXPECT_THAT(importer.request("open kv"), EndsWith(numbers({4 * mib}) + " " + backend()));
  EXPECT_EQ(importer.request("check " + numbers({0, 4 * mib, 2})), "0");
  importer.request("put " + numbers({0, mib, 3}));
  if (kind() == "malloc") {
    const std::string bytes = exporter.request("export " + numbers({3 * mib, 4 * mib}));
    importer.request("import " + bytes);
    EXPECT_EQ(importer.request("check " + numbers({0, mib, 3})), "0");
    EXPECT_EQ(importer.request("check " + numbers({mib, 3 * mib, 2})), "0");
  }
  // Its death is detected, and existing mappings stay.
  exporter.kill_and_wait();
  importer.request("use 0");
  EXPECT_TRUE(
      eventually([&] { return importer.request("state") == "exporter-gone"; }, seconds(20)));
  EXPECT_EQ(importer.request("check " + numbers({0, mib, 3})), "0");
  if (is_bound()) {
    EXPECT_EQ(importer.code("open kv"), "peer_died");
  }
}

TEST_P(share_container, hidden_gpu_is_named) {
  std::vector<int> minors{0, 1};
  if (GetParam().real) {
    minors = gpushm_testing::nvidia_minors();
    if (minors.size() < 2) {
      GTEST_SKIP() << "needs two GPUs: one for each side";
    }
  }
  agent exporter = contain(1000, {minors[0]});
  agent importer = contain(3000, {minors[1]});
  exporter.request("alloc " + kind() + " " + numbers({4 * mib, 2 * mib}));
  exporter.request("share kv " + numbers({0, 4 * mib}));
  const auto gpu = watch().stat("kv").device;
  const std::string text = importer.fails("open kv");
  EXPECT_THAT(text,
              StartsWith("device_not_visible open \"kv\": this process may not use " + gpu.uuid +
                         " at PCI " + gpu.pci_address + ": "));
  EXPECT_THAT(text, HasSubstr("/nvidia" + std::to_string(minors[0]) + "): "));
  EXPECT_EQ(importer.request("pid"), "1") << "the driver was not called: it would crash for a pool";
  EXPECT_TRUE(eventually([&] { return watch().stat("kv").leases == 1; }, seconds(4)));
}

constexpr share_setting all[] = {{"malloc", false, false},
                                 {"vmm", false, false},
                                 {"pool", false, false},
                                 {"malloc", true, false},
                                 {"vmm", true, false},
                                 {"pool", true, false}};
INSTANTIATE_TEST_SUITE_P(, share_container, ::testing::ValuesIn(all), name_of);

}  // namespace
}  // namespace gpushm_tests
