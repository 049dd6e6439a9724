// SPDX-License-Identifier: Apache-2.0
// Device nodes that a loaded driver lacks: numbers, modes, what is left as it is.
#include "containers/discover/gpus/missing_nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <optional>

#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::discover {
namespace {

namespace fs = std::filesystem;
using gpushm_tests::put_file;
using gpushm_tests::put_node;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class missing_nodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpushm_tests::can_make_nodes(root_.path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
    fs::create_directories(dev());
    put_file(proc("driver/nvidia/version"), "NVRM version: …  550.54.15\n");
    put_file(proc("driver/nvidia/gpus/0000:18:00.0/information"),
             "Model: \t\t H100\nDevice Minor: \t 3\n");
    put_file(proc("devices"),
             "Character devices:\n195 nvidia\n195 nvidia-modeset\n235 nvidia-caps\n"
             "511 nvidia-uvm\n\nBlock devices:\n  8 sd\n");
    put_file(proc("driver/nvidia-caps/mig-minors"),
             "config 1\nmonitor 2\ngpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\n"
             "gpu3/gi2/access 21\n");
    for (const char* const right : {"gi1/access", "gi1/ci0/access"}) {
      put_file(proc("driver/nvidia/capabilities/gpu3/mig/" + std::string(right)),
               "DeviceFileMinor: 1\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    }
  }
  [[nodiscard]] std::string proc(const std::string& name) const { return root_ / ("proc/" + name); }
  [[nodiscard]] std::string dev(const std::string& name = {}) const {
    return root_ / ("dev" + (name.empty() ? name : "/" + name));
  }
  [[nodiscard]] node_changes create() const {
    return create_missing_nodes(root_.path(), root_ / "proc");
  }
  /// "511:0 660" of a character device.
  [[nodiscard]] std::string about(const std::string& name) const {
    struct stat status {};
    if (::lstat(dev(name).c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) {
      return "none";
    }
    std::string mode;
    for (const unsigned shift : {6U, 3U, 0U}) {
      mode += std::to_string(status.st_mode >> shift & 7U);
    }
    return std::to_string(gnu_dev_major(status.st_rdev)) + ":" +
           std::to_string(gnu_dev_minor(status.st_rdev)) + " " + mode;
  }

  gpushm_testing::temp_dir root_{0755};
};

TEST_F(missing_nodes, are_created_with_the_numbers_of_proc) {
  const node_changes first = create();
  EXPECT_THAT(first.failed, IsEmpty());
  EXPECT_THAT(first.created,
              UnorderedElementsAre(dev("nvidiactl"),
                                   dev("nvidia3"),
                                   dev("nvidia-modeset"),
                                   dev("nvidia-uvm"),
                                   dev("nvidia-uvm-tools"),
                                   dev("nvidia-caps/nvidia-cap12"),
                                   dev("nvidia-caps/nvidia-cap13")));
  EXPECT_EQ(about("nvidiactl"), "195:255 666");
  EXPECT_EQ(about("nvidia3"), "195:3 666");
  EXPECT_EQ(about("nvidia-modeset"), "195:254 666");
  EXPECT_EQ(about("nvidia-uvm"), "511:0 666");
  EXPECT_EQ(about("nvidia-uvm-tools"), "511:1 666");
  EXPECT_EQ(about("nvidia-caps/nvidia-cap12"), "235:12 444");
  EXPECT_EQ(about("nvidia-caps/nvidia-cap13"), "235:13 444");
  EXPECT_EQ(about("nvidia-caps/nvidia-cap21"), "none");
  EXPECT_THAT(create().created, IsEmpty());
  EXPECT_EQ(std::distance(fs::directory_iterator(dev()), {}), 6);
}

TEST_F(missing_nodes, existing_ones_stay_unless_their_module_has_another_number) {
  put_node(dev("nvidiactl"), 0600);
  put_node(dev("nvidia-uvm"));
  put_file(dev("nvidia-uvm-tools"), "not a node");
  static_cast<void>(create());
  EXPECT_EQ(about("nvidiactl"), "1:3 600");
  EXPECT_EQ(about("nvidia-uvm"), "511:0 666");
  EXPECT_TRUE(fs::is_regular_file(dev("nvidia-uvm-tools")));
}

TEST_F(missing_nodes, parameters_of_the_driver_apply) {
  put_file(proc("driver/nvidia/params"),
           "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
           "DeviceFileGID: 44\nDeviceFileMode: 432\n");
  static_cast<void>(create());
  EXPECT_EQ(about("nvidia-uvm"), "511:0 660");
  struct stat status {};
  ASSERT_EQ(::stat(dev("nvidia-uvm").c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, 44U);
  EXPECT_EQ(about("nvidia-caps/nvidia-cap12"), "235:12 444");

  fs::remove(dev("nvidia-uvm"));
  put_file(proc("driver/nvidia/params"), "ModifyDeviceFiles: 0\n");
  const node_changes forbidden = create();
  EXPECT_THAT(forbidden.created, IsEmpty());
  EXPECT_THAT(
      forbidden.failed,
      ElementsAre(dev("nvidia-uvm") + ": the driver's parameter ModifyDeviceFiles=0 forbids it"));
}

TEST_F(missing_nodes, nothing_is_created_without_modules) {
  fs::remove_all(proc(""));
  EXPECT_THAT(create().created, IsEmpty());
  EXPECT_TRUE(fs::is_empty(dev()));
}

}  // namespace
}  // namespace gpushm::discover
