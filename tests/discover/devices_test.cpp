// SPDX-License-Identifier: Apache-2.0
// GPUs and MIG instances as devices of a document: names, nodes, omitted devices with reasons.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "containers/discover/gpus/generate.hpp"
#include "containers/discover/gpus/nodes.hpp"
#include "gpushm/error.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::discover {
namespace {

using gpushm_tests::put_file;
using gpushm_tests::put_node;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string uuid = "GPU-00000000-1111-4222-8333-444455556666";

gpu_entry gpu_at(unsigned index, bool mig = false) {
  gpu_entry gpu;
  gpu.index = index;
  gpu.uuid = uuid;
  gpu.uuid[11] = static_cast<char>('0' + index);
  gpu.pci_address = std::string("0000:1").append(std::to_string(index)).append(":00.0");
  gpu.minor = static_cast<int>(index);
  gpu.mig_enabled = mig;
  return gpu;
}

std::string what(const std::function<void()>& call) {
  try {
    call();
  } catch (const error& failure) {
    return failure.what();
  }
  return "no error";
}

// ---- choosing ----

std::vector<gpu_entry> three_gpus() {
  std::vector<gpu_entry> all{gpu_at(0), gpu_at(1, true), gpu_at(2)};
  all[1].instances = {{0, "MIG-a", 7, 0}, {3, "MIG-b", 8, 0}};
  return all;
}

TEST(select_devices, accepts_numbers_uuids_and_instances) {
  const auto gpus = three_gpus();
  EXPECT_EQ(select_devices(gpus, {}), gpus);
  EXPECT_EQ(select_devices(gpus, {"2"}), (std::vector<gpu_entry>{gpus[2]}));
  EXPECT_EQ(select_devices(gpus, {gpus[2].uuid, "0"}), (std::vector<gpu_entry>{gpus[0], gpus[2]}));
  EXPECT_EQ(select_devices(gpus, {"1"}), (std::vector<gpu_entry>{gpus[1]}));
  gpu_entry part = gpus[1];
  part.instances = {gpus[1].instances[1]};
  EXPECT_EQ(select_devices(gpus, {"1:3"}), (std::vector<gpu_entry>{part}));
  EXPECT_EQ(select_devices(gpus, {"MIG-b"}), (std::vector<gpu_entry>{part}));
  EXPECT_EQ(select_devices(gpus, {"MIG-b", "1"}), (std::vector<gpu_entry>{gpus[1]}));
}

TEST(select_devices, unknown_device_is_rejected_with_available_list) {
  for (const char* id : {"3", "1:1", "GPU-x", "", "all"}) {
    EXPECT_EQ(what([&] {
                static_cast<void>(select_devices(three_gpus(), {"0", id}));
              }),
              std::string(*id == '\0' ? "find device" : std::string("find device \"") + id + "\"") +
                  ": no such device; available: 0 = GPU-00000000-1111-4222-8333-444455556666, "
                  "1 = GPU-00000001-1111-4222-8333-444455556666, 1:0 = MIG-a, 1:3 = MIG-b, "
                  "2 = GPU-00000002-1111-4222-8333-444455556666 (use the index or UUID of a GPU or "
                  "MIG instance)")
        << id;
  }
  EXPECT_THAT(what([] { static_cast<void>(select_devices({}, {"0"})); }),
              HasSubstr("no GPU is available"));
}

// ---- describing ----

class discover_devices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpushm_tests::can_make_nodes(root_.path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
    put_file(root_ / "usr/lib64/libcuda.so.550.54.15", gpushm_tests::elf_stub("libcuda.so.1"));
    for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}) {
      put_node(root_.path() + "/dev/" + name);
    }
    options_.driver_root = root_.path();
    options_.proc_root = root_ / "proc";
    options_.sys_root = root_ / "sys";
    options_.hook_path = "/usr/bin/gpushm";
    options_.all_device = false;
  }
  void node(const std::string& name, unsigned mode = 0666, unsigned group = 0) {
    put_node(root_.path() + "/dev/" + name, mode, group);
  }
  [[nodiscard]] generated make(const std::vector<gpu_entry>& gpus) const {
    return generate(options_, gpus);
  }
  static std::vector<std::string> names(const generated& created) {
    std::vector<std::string> all;
    for (const cdi::device& each : created.content.devices) {
      all.push_back(each.name);
    }
    return all;
  }
  static std::vector<std::string> paths(const cdi::device& device) {
    std::vector<std::string> all;
    for (const cdi::device_node& each : device.changes.device_nodes) {
      all.push_back(each.path);
    }
    return all;
  }

  gpushm_testing::temp_dir root_;
  generate_options options_;
};

TEST_F(discover_devices, names_and_versions_follow_the_options) {
  node("nvidia0");
  EXPECT_THAT(names(make({gpu_at(0)})), ElementsAre("0", uuid));
  EXPECT_EQ(make({gpu_at(0)}).content.version, "0.5.0");
  EXPECT_EQ(make({gpu_at(0)}).content.kind, "nvidia.com/gpu");

  options_.strategies = {name_strategy::type_index};
  options_.all_device = true;
  EXPECT_THAT(names(make({gpu_at(0)})), ElementsAre("gpu0", "all"));
  options_.device_class = "gpu.shared";
  EXPECT_EQ(make({gpu_at(0)}).content.version, "0.6.0");
}

TEST_F(discover_devices, node_of_this_machine_has_no_host_path) {
  node("nvidia0");
  const auto created = make({gpu_at(0)});
  const auto& node = created.content.devices.at(0).changes.device_nodes.at(0);
  EXPECT_EQ(node.path, "/dev/nvidia0");
  EXPECT_EQ(node.host_path, root_ / "dev/nvidia0");
  EXPECT_EQ(node.major, 0);
  EXPECT_EQ(node.minor, 0);
  EXPECT_EQ(node.file_mode, std::nullopt);
  EXPECT_EQ(node.gid, std::nullopt);

  // /dev/null is a character device everywhere.
  const node_finder own("/", "/sys", {});
  EXPECT_EQ(own.node("/dev/null")->host_path, "");
  EXPECT_EQ(own.node("/dev/null")->path, "/dev/null");
}

TEST_F(discover_devices, group_is_set_only_for_restricted_nodes) {
  node("nvidia0");
  node("dri/card1", 0660, 44);
  node("dri/renderD128", 0660, 105);
  std::filesystem::create_directories(root_ / "sys/bus/pci/devices/0000:10:00.0/drm/card1");
  std::filesystem::create_directories(root_ / "sys/bus/pci/devices/0000:10:00.0/drm/renderD128");
  std::filesystem::create_directories(root_ / "sys/bus/pci/devices/0000:10:00.0/drm/controlD64");
  std::filesystem::create_directories(root_ / "sys/bus/pci/devices/0000:99:00.0/drm/card0");
  gpushm_tests::put_link(root_ / "dev/dri/by-path/pci-0000:10:00.0-card", "../card1");
  gpushm_tests::put_link(root_ / "dev/dri/by-path/pci-0000:10:00.0-render", "../renderD129");
  options_.all_device = true;
  const auto created = make({gpu_at(0)});
  EXPECT_EQ(created.content.version, "0.7.0");
  const cdi::device& device = created.content.devices.at(0);
  EXPECT_THAT(paths(device), ElementsAre("/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"));
  EXPECT_THAT(device.changes.additional_gids, ElementsAre(44U, 105U));
  EXPECT_EQ(device.changes.device_nodes[1].file_mode, 0660U);
  EXPECT_EQ(device.changes.device_nodes[1].gid, 44U);
  ASSERT_EQ(device.changes.hooks.size(), 1U);
  EXPECT_THAT(device.changes.hooks[0].args,
              ElementsAre("gpushm",
                          "cdi",
                          "hook",
                          "create-symlinks",
                          "--link",
                          "../card1::/dev/dri/by-path/pci-0000:10:00.0-card"));
  EXPECT_EQ(created.content.devices.back().name, "all");
  EXPECT_EQ(created.content.devices.back().changes, device.changes);
}

TEST_F(discover_devices, gpu_without_node_is_omitted_and_reported) {
  node("nvidia1");
  const auto created = make({gpu_at(0), gpu_at(1)});
  EXPECT_THAT(names(created), ElementsAre("1", gpu_at(1).uuid));
  EXPECT_THAT(created.incomplete,
              ElementsAre("GPU 0 (" + uuid + ") is left out: missing device node " +
                          (root_ / "dev/nvidia0")));
  EXPECT_EQ(
      what([&] { static_cast<void>(make({gpu_at(0)})); }),
      "describe the GPUs: GPU 0 (" + uuid + ") is left out: missing device node " +
          (root_ / "dev/nvidia0") +
          " (check that nvidia-smi works on this machine, and that --dev-root is the prefix of "
          "/dev)");
  EXPECT_THAT(what([&] { static_cast<void>(make({})); }), HasSubstr("NVML reports no GPU"));
}

TEST_F(discover_devices, regular_file_is_not_a_node) {
  put_file(root_ / "dev/nvidia0", "");
  EXPECT_THAT(what([&] { static_cast<void>(make({gpu_at(0)})); }),
              HasSubstr("missing device node"));
}

TEST_F(discover_devices, mig_instance_has_three_nodes_and_replaces_gpu) {
  node("nvidia0");
  node("nvidia-caps/nvidia-cap66");
  node("nvidia-caps/nvidia-cap68");
  // As long as for 32 GPUs.
  std::string others;
  for (int line = 0; line < 32 * 135; ++line) {
    others.append("gpu9/gi9/ci9/access 999\n");
  }
  put_file(root_ / "proc/driver/nvidia-caps/mig-minors",
           others + "gpu0/gi7/access 66\ngpu0/gi7/ci1/access 68\n");
  gpu_entry gpu = gpu_at(0, true);
  gpu.instances = {{2, "MIG-x", 7, 1}};
  const auto created = make({gpu});
  EXPECT_THAT(names(created), ElementsAre("0:2", "MIG-x"));
  EXPECT_THAT(
      paths(created.content.devices[0]),
      ElementsAre(
          "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap68"));
  EXPECT_THAT(created.found, Contains("1 MIG instance"));
  options_.strategies = {name_strategy::type_index};
  EXPECT_THAT(names(make({gpu})), ElementsAre("mig0:2"));
}

TEST_F(discover_devices, incomplete_mig_instance_is_omitted_and_reported) {
  node("nvidia0");
  node("nvidia1");
  node("nvidia-caps/nvidia-cap66");
  gpu_entry gpu = gpu_at(0, true);
  gpu.instances = {{2, "MIG-x", 7, 1}};
  const auto left_out = [&] {
    const auto created = make({gpu, gpu_at(1)});
    EXPECT_THAT(names(created), ElementsAre("1", gpu_at(1).uuid));
    return created.incomplete;
  };
  const std::string start = "MIG instance 0:2 (MIG-x) is left out: ";
  EXPECT_THAT(left_out(), ElementsAre(start + "mig-minors has no line for gpu0/gi7/access"));
  put_file(root_ / "proc/driver/nvidia-caps/mig-minors", "gpu0/gi7/access 66\n");
  EXPECT_THAT(left_out(), ElementsAre(start + "mig-minors has no line for gpu0/gi7/ci1/access"));
  put_file(root_ / "proc/driver/nvidia-caps/mig-minors",
           "gpu0/gi7/access 66\ngpu0/gi7/ci1/access 68\n");
  EXPECT_THAT(
      left_out(),
      ElementsAre(start + "missing device node " + (root_ / "dev/nvidia-caps/nvidia-cap68")));
  gpu.instances.clear();
  EXPECT_THAT(
      left_out(),
      ElementsAre("GPU 0 (" + uuid + ") is left out: MIG is enabled, but it has no instances"));
}

TEST_F(discover_devices, missing_control_nodes_are_reported) {
  node("nvidia0");
  std::filesystem::remove(root_ / "dev/nvidia-uvm");
  std::filesystem::remove(root_ / "dev/nvidia-modeset");
  const auto created = make({gpu_at(0)});
  EXPECT_THAT(
      created.incomplete,
      ElementsAre("missing device node " + (root_ / "dev/nvidia-uvm") +
                  ": CUDA will not start in containers (nvidia-modprobe -u -c=0 creates it)"));
  EXPECT_THAT(created.missing,
              Contains(missing_items{"device nodes", {root_ / "dev/nvidia-modeset"}}));
}

TEST_F(discover_devices, stale_uvm_node_is_reported) {
  node("nvidia0");
  put_file(root_ / "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n509 nvidia-uvm\n");
  EXPECT_THAT(make({gpu_at(0)}).incomplete,
              ElementsAre((root_ / "dev/nvidia-uvm") +
                          " has major 1, but the module now has 509: remove it and run "
                          "nvidia-modprobe -u -c=0"));
  put_file(root_ / "proc/devices", "Character devices:\n  1 nvidia-uvm\n");
  EXPECT_THAT(make({gpu_at(0)}).incomplete, IsEmpty());
}

TEST_F(discover_devices, version_mismatch_with_module_is_reported) {
  node("nvidia0");
  put_file(root_ / "proc/driver/nvidia/version", "NVRM version: Module  570.1.2  Tue\n");
  EXPECT_THAT(
      make({gpu_at(0)}).incomplete,
      ElementsAre("the libraries are from driver 550.54.15, the loaded kernel module is from "
                  "570.1.2: CUDA does not start until they match (reboot)"));
}

}  // namespace
}  // namespace gpushm::discover
