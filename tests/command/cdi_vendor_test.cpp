// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi generate|refresh --vendor amd|intel` and the other commands on the documents.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/broker_process/cli.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/driver_tree/sysfs_tree.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class cdi_vendor : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_make_nodes(cli_.directory().path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
  }
  void make(const std::string& machine) { make_sysfs_tree(machine, root_); }
  [[nodiscard]] run_result run(std::vector<std::string> words) const {
    words.insert(words.begin(), "cdi");
    return gpushm_testing::run_program(cli_.command(words), seconds(60));
  }
  [[nodiscard]] run_result generate(const std::string& vendor,
                                    std::vector<std::string> more = {},
                                    const std::string& command = "generate") const {
    more.insert(
        more.begin(),
        {command, "--vendor", vendor, "--driver-root", root_, "--hook-path", "/bin/gpushm"});
    return run(std::move(more));
  }
  [[nodiscard]] std::string spec(const std::string& name) const {
    return cli_.directory() / ("cdi/" + name);
  }

  cli cli_;
  std::string root_ = cli_.directory() / "machine";
};

TEST_F(cdi_vendor, document_is_valid_listed_and_injected) {
  make("amd-mi210-eight");
  fs::create_directories(spec(""));
  const run_result made = generate("amd", {"--output", spec("amd.json")});
  ASSERT_EQ(made.status, exited(0)) << made.err;
  EXPECT_EQ(made.err, "gpushm: found 8 AMD GPUs\n");
  const run_result checked = run({"validate", spec("amd.json")});
  EXPECT_EQ(checked.status, exited(0)) << checked.out << checked.err;
  EXPECT_THAT(run({"list", "--spec-dir", spec("")}).out,
              AllOf(HasSubstr("amd.com/gpu=0"), HasSubstr("amd.com/gpu=all")));
  const std::string config = cli_.directory() / "config.json";
  put_file(config, "{}");
  const run_result injected =
      run({"inject", "amd.com/gpu=0", "--spec-dir", spec(""), "--spec", config});
  ASSERT_EQ(injected.status, exited(0)) << injected.err;
  const json devices = json::parse(injected.out)["linux"]["devices"];
  ASSERT_EQ(devices.size(), 3U) << injected.out;
  EXPECT_EQ(devices[2]["path"], "/dev/kfd");
}

TEST_F(cdi_vendor, both_forms_of_a_maker_are_one_vendor) {
  make("intel-arc-and-integrated");
  const run_result made = generate("intel", {"--format", "json"});
  ASSERT_EQ(made.status, exited(0)) << made.err;
  EXPECT_EQ(json::parse(made.out)["kind"], "intel.com/gpu");
  EXPECT_EQ(generate("intel.com", {"--format", "json"}).out, made.out);
  EXPECT_THAT(made.out, HasSubstr("/dev/dri/by-path/pci-0000:03:00.0-render"));
}

TEST_F(cdi_vendor, refresh_follows_the_devices) {
  make("intel-sriov");
  const auto refresh = [&] {
    return generate("intel", {"--output", spec("intel.yaml")}, "refresh");
  };
  const run_result first = refresh();
  ASSERT_EQ(first.status, exited(0)) << first.err;
  EXPECT_THAT(first.err, HasSubstr("wrote " + spec("intel.yaml") + ": it did not exist"));
  EXPECT_THAT(refresh().err, IsEmpty());
  fs::remove_all(root_ + "/sys/bus/pci/devices/0000:00:02.7");
  fs::remove_all(root_ + "/sys/class/drm/card7");
  fs::remove_all(root_ + "/sys/class/drm/renderD135");
  EXPECT_THAT(refresh().err, EndsWith(": removed: 6 and 0000-00-02-7-0x4690\n"));
}

TEST_F(cdi_vendor, options_of_nvidias_driver_are_refused) {
  make("intel-arc-and-integrated");
  for (const char* option : {"--proc-root", "--ldcache-path", "--library-search-path"}) {
    const run_result refused = generate("intel", {option, "/x"});
    EXPECT_EQ(refused.status, exited(2));
    EXPECT_THAT(
        refused.err,
        HasSubstr(std::string(option) + ": it is only for NVIDIA's driver, not for intel.com"));
    EXPECT_THAT(refused.out, IsEmpty());
  }
}

TEST_F(cdi_vendor, sysfs_and_nodes_may_be_in_other_places) {
  make("amd-apu-and-discrete");
  fs::create_directories(root_ + "/other");
  fs::rename(root_ + "/sys", root_ + "/other/sys");
  EXPECT_EQ(generate("amd", {"--sys-root", root_ + "/other/sys"}).status, exited(0));
  const run_result none = generate("amd", {"--sys-root", root_ + "/nothing"});
  EXPECT_EQ(none.status, exited(1));
  EXPECT_THAT(none.err, AllOf(HasSubstr("lists no GPU of AMD"), Not(HasSubstr("nvidia"))));
}

}  // namespace
}  // namespace gpushm_tests
