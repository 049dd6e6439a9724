// SPDX-License-Identifier: Apache-2.0
// GPUs of AMD and Intel as devices of a document: recorded machines, devices that are left out,
// files that the kernel does not write.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/document/write.hpp"
#include "containers/discover/gpus/generate.hpp"
#include "gpushm/error.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/driver_tree/sysfs_tree.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::discover {
namespace {

namespace fs = std::filesystem;
using gpushm_tests::make_sysfs_tree;
using gpushm_tests::put_file;
using gpushm_tests::put_link;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using strings = std::vector<std::string>;

class discover_vendors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpushm_tests::can_make_nodes(root_.path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
    options_.driver_root = root_.path();
    options_.sys_root = root_ / "sys";
    options_.hook_path = "/usr/bin/gpushm";
  }
  [[nodiscard]] generated make(gpu_vendor source) const {
    generate_options options = options_;
    options.source = source;
    options.vendor = cdi_name(source);
    generated created = generate(options);
    // Engines must accept it.
    const auto read = cdi::parse(cdi::to_text(created.content, cdi::format::yaml), "created");
    EXPECT_THAT(read.problems, IsEmpty());
    EXPECT_EQ(read.content, created.content);
    return created;
  }
  [[nodiscard]] std::string failure(gpu_vendor source) const {
    try {
      static_cast<void>(make(source));
    } catch (const error& thrown) {
      return thrown.what();
    }
    return "no error";
  }
  static strings names(const generated& created) {
    strings all;
    for (const cdi::device& each : created.content.devices) {
      all.push_back(each.name);
    }
    return all;
  }
  /// The paths of the nodes of a device in the container; empty if there is no such device.
  static strings nodes(const generated& created, const std::string& name) {
    strings strings;
    for (const cdi::device& each : created.content.devices) {
      for (const cdi::device_node& node : each.changes.device_nodes) {
        if (each.name == name) {
          strings.push_back(node.path);
        }
      }
    }
    return strings;
  }
  static cdi::edits edits(const generated& created, const std::string& name) {
    for (const cdi::device& each : created.content.devices) {
      if (each.name == name) {
        return each.changes;
      }
    }
    ADD_FAILURE() << "no device " << name;
    return {};
  }
  /// "KIND NAME, NAME" of what was not found.
  static strings missing(const generated& created) {
    strings all;
    for (const missing_items& each : created.missing) {
      all.push_back(each.kind + " " + list_text(each.names));
    }
    return all;
  }

  gpushm_testing::temp_dir root_;
  generate_options options_;
};

// ---- AMD ----

TEST_F(discover_vendors, partitions_of_mi300x_are_numbered_as_by_rocm) {
  make_sysfs_tree("amd-mi300x-cpx", root_.path());
  const generated created = make(gpu_vendor::amd);
  EXPECT_EQ(created.content.kind, "amd.com/gpu");
  EXPECT_THAT(created.found, ElementsAre("63 partitions of 8 AMD GPUs"));
  ASSERT_THAT(created.content.devices, SizeIs(64));  // partitions share the GPU's unique ID
  EXPECT_EQ(names(created).front(), "0");
  EXPECT_EQ(names(created).back(), "all");
  EXPECT_THAT(nodes(created, "0"),
              ElementsAre("/dev/dri/card1", "/dev/dri/renderD128", "/dev/kfd"));
  EXPECT_THAT(nodes(created, "1"),
              ElementsAre("/dev/dri/card2", "/dev/dri/renderD129", "/dev/kfd"));
  EXPECT_THAT(nodes(created, "62"),
              ElementsAre("/dev/dri/card63", "/dev/dri/renderD190", "/dev/kfd"));
  EXPECT_THAT(nodes(created, "all"), SizeIs(127));
  EXPECT_THAT(created.incomplete, IsEmpty());
  EXPECT_THAT(missing(created), IsEmpty());
}

TEST_F(discover_vendors, partition_nodes_that_are_not_in_use_are_left_out) {
  make_sysfs_tree("amd-mi308x-cpx", root_.path());
  const generated created = make(gpu_vendor::amd);
  EXPECT_THAT(created.found, ElementsAre("32 partitions of 8 AMD GPUs"));
  ASSERT_THAT(created.content.devices, SizeIs(33));
  EXPECT_THAT(nodes(created, "3"), Contains("/dev/dri/renderD131"));
  EXPECT_THAT(nodes(created, "4"), Contains("/dev/dri/renderD136"));
  EXPECT_THAT(nodes(created, "all"), Not(Contains("/dev/dri/renderD132")));
  // The second PCI domain comes after the first.
  EXPECT_THAT(nodes(created, "16"), Contains("/dev/dri/renderD160"));
}

TEST_F(discover_vendors, partitions_have_both_names_of_their_platform_devices) {
  const strings topology{
      "groups 44 109",
      "node /dev/kfd 0660 109",
      "pci 0000:05:00.0 pci0000:04 0x1002 0x74a1 0x120000 amdgpu card1 renderD128",
      "kfd 1 location_id=1280 domain=0 drm_render_minor=128 unique_id=7",
      "kfd 2 location_id=1281 domain=0 drm_render_minor=136 unique_id=7"};
  for (const char* name : {"amdgpu_xcp_29", "amdgpu_xcp.29"}) {
    fs::remove_all(root_ / "sys");
    fs::remove_all(root_ / "dev");
    strings lines = topology;
    lines.push_back(std::string("platform ") + name + " renderD136");
    make_sysfs_tree(lines, root_.path());
    const generated created = make(gpu_vendor::amd);
    EXPECT_THAT(created.found, ElementsAre("2 partitions of 1 AMD GPU")) << name;
    EXPECT_THAT(nodes(created, "1"), ElementsAre("/dev/dri/renderD136", "/dev/kfd")) << name;
    EXPECT_THAT(
        edits(created, "1").hooks.front().args,
        Contains(std::string("../renderD136::/dev/dri/by-path/platform-") + name + "-render"));
  }
}

TEST_F(discover_vendors, amd_gpus_have_unique_names_groups_and_links) {
  make_sysfs_tree("amd-mi210-eight", root_.path());
  const generated created = make(gpu_vendor::amd);
  EXPECT_THAT(created.found, ElementsAre("8 AMD GPUs"));
  ASSERT_THAT(created.content.devices, SizeIs(17));
  // By bus, although the render nodes are in another order.
  EXPECT_EQ(names(created)[0], "0");
  EXPECT_EQ(names(created)[1], "GPU-93bb3629c01aea1c");
  EXPECT_THAT(nodes(created, "0"), Contains("/dev/dri/renderD130"));
  const cdi::edits first = edits(created, "0");
  EXPECT_THAT(first.additional_gids, ElementsAre(44, 109));
  ASSERT_THAT(first.hooks, SizeIs(1));
  EXPECT_THAT(first.hooks[0].args,
              ElementsAre("gpushm",
                          "cdi",
                          "hook",
                          "create-symlinks",
                          "--link",
                          "../card1::/dev/dri/by-path/pci-0000:03:00.0-card",
                          "--link",
                          "../renderD130::/dev/dri/by-path/pci-0000:03:00.0-render"));
  EXPECT_EQ(first.device_nodes[0].file_mode, 0660U);
  EXPECT_EQ(first.device_nodes[0].gid, 44U);
  EXPECT_EQ(first.device_nodes[0].major, 0);
  EXPECT_EQ(first.device_nodes[0].host_path, root_ / "dev/dri/card1");
  EXPECT_EQ(created.content.version, "0.7.0");
  EXPECT_THAT(edits(created, "all").hooks, SizeIs(1));
}

TEST_F(discover_vendors, integrated_and_discrete_gpus_are_ordered_by_bus) {
  make_sysfs_tree("amd-apu-and-discrete", root_.path());
  const generated created = make(gpu_vendor::amd);
  EXPECT_THAT(names(created), ElementsAre("0", "1", "GPU-6cf422c388c136e3", "all"));
  EXPECT_THAT(nodes(created, "0"), Contains("/dev/dri/renderD129"));
  EXPECT_THAT(nodes(created, "1"), Contains("/dev/dri/renderD128"));
  options_.strategies = {name_strategy::uuid};
  const generated unique = make(gpu_vendor::amd);
  EXPECT_THAT(names(unique), ElementsAre("GPU-6cf422c388c136e3", "all"));
  EXPECT_THAT(unique.incomplete,
              ElementsAre("GPU 0 (0000:0c:00.0) is left out: it has no unique ID, and its index is "
                          "not requested (--device-name-strategy index)"));
  EXPECT_THAT(nodes(unique, "all"), Not(Contains("/dev/dri/renderD129")));
}

TEST_F(discover_vendors, gpu_without_compute_driver_is_left_out) {
  make_sysfs_tree("hades-canyon", root_.path());
  EXPECT_EQ(
      failure(gpu_vendor::amd),
      "describe the GPUs: not found: compute nodes (KFD) of 0000:01:00.0 (check that rocminfo "
      "works on this machine (modprobe amdgpu; the kernel needs CONFIG_HSA_AMD), and that "
      "--dev-root and --sys-root are right)");
  EXPECT_THAT(names(make(gpu_vendor::intel)), ElementsAre("0", "0000-00-02-0-0x591b", "all"));
}

TEST_F(discover_vendors, missing_nodes_leave_a_gpu_out_and_keep_the_numbers) {
  make_sysfs_tree("amd-mi210-eight", root_.path());
  fs::remove(root_ / "dev/dri/renderD130");
  const generated created = make(gpu_vendor::amd);
  EXPECT_EQ(names(created).front(), "1");
  EXPECT_THAT(created.incomplete,
              ElementsAre("GPU 0 (0000:03:00.0) is left out: missing device node " +
                          (root_ / "dev/dri/renderD130")));
  fs::remove(root_ / "dev/kfd");
  EXPECT_THAT(failure(gpu_vendor::amd),
              HasSubstr("GPU 0 (0000:03:00.0) is left out: missing device node "));
}

// ---- Intel ----

TEST_F(discover_vendors, integrated_and_arc_have_the_names_of_intels_generator) {
  make_sysfs_tree("intel-arc-and-integrated", root_.path());
  const generated created = make(gpu_vendor::intel);
  EXPECT_EQ(created.content.kind, "intel.com/gpu");
  EXPECT_THAT(created.found, ElementsAre("2 Intel GPUs"));
  EXPECT_THAT(names(created),
              ElementsAre("0", "0000-00-02-0-0x4690", "1", "0000-03-00-0-0x56a0", "all"));
  EXPECT_THAT(nodes(created, "1"), ElementsAre("/dev/dri/card1", "/dev/dri/renderD129"));
  EXPECT_THAT(edits(created, "1").hooks.front().args,
              Contains("../renderD129::/dev/dri/by-path/pci-0000:03:00.0-render"));
  options_.strategies = {name_strategy::type_index};
  options_.all_device = false;
  EXPECT_THAT(names(make(gpu_vendor::intel)), ElementsAre("gpu0", "gpu1"));
}

TEST_F(discover_vendors, virtual_functions_are_devices_unless_given_to_a_machine) {
  make_sysfs_tree("intel-sriov", root_.path());
  options_.strategies = {name_strategy::uuid};
  const generated created = make(gpu_vendor::intel);
  EXPECT_THAT(created.found, ElementsAre("7 Intel GPUs"));
  EXPECT_EQ(names(created)[0], "0000-00-02-0-0x4690");
  EXPECT_EQ(names(created)[1], "0000-00-02-2-0x4690");
  EXPECT_THAT(nodes(created, "0000-00-02-2-0x4690"),
              ElementsAre("/dev/dri/card2", "/dev/dri/renderD130"));
  EXPECT_THAT(missing(created), ElementsAre("DRM nodes of 0000:00:02.1 (driver vfio-pci)"));
}

TEST_F(discover_vendors, card_without_render_node_has_only_its_card) {
  make_sysfs_tree(strings{"pci 0000:03:00.0 pci0000:00 0x8086 0xe20b 0x030000 xe card0"},
                  root_.path());
  EXPECT_THAT(nodes(make(gpu_vendor::intel), "0"), ElementsAre("/dev/dri/card0"));
}

TEST_F(discover_vendors, other_drm_devices_are_left_out) {
  make_sysfs_tree("server-with-others", root_.path());
  const generated intel = make(gpu_vendor::intel);
  EXPECT_THAT(names(intel), ElementsAre("0", "0000-81-00-0-0x0bda", "all"));
  EXPECT_THAT(nodes(intel, "all"), ElementsAre("/dev/dri/card4", "/dev/dri/renderD130"));
  EXPECT_THAT(missing(intel), ElementsAre("DRM nodes of 0000:00:02.0 (driver gma500)"));
  const generated amd = make(gpu_vendor::amd);
  EXPECT_THAT(names(amd), ElementsAre("0", "GPU-1901ead3a2ecd4a6", "all"));
  EXPECT_THAT(nodes(amd, "all"), ElementsAre("/dev/dri/card5", "/dev/dri/renderD131", "/dev/kfd"));
  EXPECT_THAT(missing(amd), ElementsAre("DRM nodes of 0000:c2:00.0 (driver vfio-pci)"));
}

TEST_F(discover_vendors, devices_are_selected_by_each_of_their_names) {
  make_sysfs_tree("intel-arc-and-integrated", root_.path());
  options_.strategies = {name_strategy::index};
  options_.all_device = false;
  for (const char* id : {"1", "0000-03-00-0-0x56a0", "0000:03:00.0"}) {
    options_.device_ids = {id};
    EXPECT_THAT(names(make(gpu_vendor::intel)), ElementsAre("1")) << id;
  }
  options_.device_ids = {"0", "2"};
  EXPECT_EQ(failure(gpu_vendor::intel),
            "find device \"2\": no such device; available: 0 = 0000-00-02-0-0x4690, 1 = "
            "0000-03-00-0-0x56a0 (use the index, the unique name or the PCI address of a GPU)");
}

// ---- files that the kernel does not write ----

TEST_F(discover_vendors, machine_without_gpus_is_an_error) {
  EXPECT_EQ(failure(gpu_vendor::intel),
            "describe the GPUs: " + (root_ / "sys") +
                " lists no GPU of Intel (check that /dev/dri has its nodes (modprobe xe or i915), "
                "and that --dev-root and --sys-root are right)");
  options_.sys_root = "/does/not/exist";
  EXPECT_THAT(failure(gpu_vendor::amd), HasSubstr("/does/not/exist lists no GPU of AMD"));
}

TEST_F(discover_vendors, tree_of_class_drm_alone_is_enough) {
  const std::string device = root_ / "sys/class/drm/card0/device";
  put_file(device + "/vendor", "0x8086\n");
  put_file(device + "/device", "0x56a0\n");
  put_file(device + "/uevent", "DRIVER=i915\nPCI_SLOT_NAME=0000:03:00.0\n");
  fs::create_directories(root_ / "sys/class/drm/renderD128");
  put_link(root_ / "sys/class/drm/renderD128/device", "../card0/device");
  gpushm_tests::put_node(root_ / "dev/dri/card0");
  gpushm_tests::put_node(root_ / "dev/dri/renderD128");
  const generated created = make(gpu_vendor::intel);
  EXPECT_THAT(nodes(created, "0000-03-00-0-0x56a0"),
              ElementsAre("/dev/dri/card0", "/dev/dri/renderD128"));
  EXPECT_EQ(created.content.version, "0.5.0");  // every user may open the nodes
}

TEST_F(discover_vendors, hostile_attributes_leave_the_device_out) {
  const strings line{"pci 0000:03:00.0 pci0000:00 0x8086 0x56a0 0x030000 i915 card0 renderD128",
                     "pci 0000:04:00.0 pci0000:00 0x8086 0x56a1 0x030000 i915 card1 renderD129"};
  const std::string vendor = "sys/devices/pci0000:00/0000:03:00.0/vendor";
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> changes{
      {"missing", [](const std::string&) {}},
      {"binary", [](const std::string& at) { put_file(at, std::string("0x80\0\xff\n", 7)); }},
      {"empty", [](const std::string& at) { put_file(at, ""); }},
      {"large", [](const std::string& at) { put_file(at, "0x8086" + std::string(1 << 20, ' ')); }},
      {"number too large", [](const std::string& at) { put_file(at, "0x800000008086\n"); }},
      {"directory", [](const std::string& at) { fs::create_directories(at); }},
      {"pipe", [](const std::string& at) { ASSERT_EQ(::mkfifo(at.c_str(), 0644), 0); }},
      {"endless", [](const std::string& at) { put_link(at, "/dev/zero"); }},
      {"link out of the root", [](const std::string& at) { put_link(at, "/../../etc/hostname"); }},
      {"loop of links", [](const std::string& at) { put_link(at, "vendor"); }},
  };
  for (const auto& [name, change] : changes) {
    fs::remove_all(root_ / "sys");
    fs::remove_all(root_ / "dev");
    make_sysfs_tree(line, root_.path());
    fs::remove(root_ / vendor);
    change(root_ / vendor);
    const generated created = make(gpu_vendor::intel);
    EXPECT_THAT(names(created), ElementsAre("0", "0000-04-00-0-0x56a1", "all")) << name;
  }
}

TEST_F(discover_vendors, hostile_names_and_topologies_describe_nothing_else) {
  make_sysfs_tree("server-with-others", root_.path());
  const std::string nodes_of_kfd = root_ / "sys/devices/virtual/kfd/kfd/topology/nodes/";
  // A render node of another maker, numbers that are none, a file without an end of line.
  put_file(nodes_of_kfd + "2/properties", "drm_render_minor 130\nlocation_id 256\nunique_id 1\n");
  put_file(nodes_of_kfd + "3/properties", "drm_render_minor 99999999999999999999\n");
  put_file(nodes_of_kfd + "4/properties", "drm_render_minor -1\nlocation_id x\n");
  put_file(nodes_of_kfd + "5/properties", std::string("drm_render_minor\0 131", 21));
  put_file(nodes_of_kfd + "6/properties", std::string(std::size_t{1} << 20U, '1'));
  ASSERT_EQ(::mkfifo((root_ / "sys/pipe").c_str(), 0644), 0);
  put_link(nodes_of_kfd + "7/properties", "/pipe");
  const std::string drm = root_ / "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/drm/";
  for (const char* name :
       {"card", "card4x", "renderD", "renderD-1", "renderD99999999", "card4\n"}) {
    fs::create_directories(drm + name);
  }
  put_link(root_ / "sys/bus/pci/devices/0000:00:00", "../../../devices/pci0000:00");
  put_link(root_ / "sys/bus/pci/devices/..:..:...0", "/");
  put_link(root_ / "sys/class/drm/card9", "/");
  put_link(root_ / "sys/class/drm/renderD200", "renderD200");
  put_link(root_ / "dev/dri/by-path/a b\n", "../card4");
  put_link(root_ / "dev/dri/by-path/pci-x-card", "/etc/passwd");
  const generated intel = make(gpu_vendor::intel);
  EXPECT_THAT(nodes(intel, "all"), ElementsAre("/dev/dri/card4", "/dev/dri/renderD130"));
  EXPECT_THAT(edits(intel, "all").hooks.front().args, SizeIs(8));  // two links
  const generated amd = make(gpu_vendor::amd);
  EXPECT_THAT(names(amd), ElementsAre("0", "GPU-1901ead3a2ecd4a6", "all"));
}

TEST_F(discover_vendors, absolute_links_stay_inside_the_root) {
  make_sysfs_tree(strings{"pci 0000:03:00.0 pci0000:00 0x8086 0x56a0 0x030000 i915 card0"},
                  root_.path());
  // As a copied sysfs may have them: absolute, from the root of sysfs.
  fs::remove(root_ / "sys/bus/pci/devices/0000:03:00.0");
  put_link(root_ / "sys/bus/pci/devices/0000:03:00.0", "/devices/pci0000:00/0000:03:00.0");
  fs::remove(root_ / "sys/class/drm/card0");
  EXPECT_THAT(nodes(make(gpu_vendor::intel), "0"), ElementsAre("/dev/dri/card0"));
}

TEST(gpu_vendor, has_a_short_name_and_a_name_in_kinds) {
  for (const auto each : {gpu_vendor::nvidia, gpu_vendor::amd, gpu_vendor::intel}) {
    EXPECT_EQ(parse_gpu_vendor(to_string(each)), each);
    EXPECT_EQ(parse_gpu_vendor(cdi_name(each)), each);
    EXPECT_EQ(cdi_name(each), std::string(to_string(each)) + ".com");
  }
  for (const char* text : {"", "AMD", "amd.", "amd.com/gpu", "example.com", "com"}) {
    EXPECT_EQ(parse_gpu_vendor(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace gpushm::discover
