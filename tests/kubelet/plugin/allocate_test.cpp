// SPDX-License-Identifier: Apache-2.0
// Allocations for containers, by strategy, and rejected requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "containers/cdi/document/parse.hpp"
#include "kubernetes/device_plugin/plan/plan.hpp"
#include "tests/kubelet/plugin/world.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::device_plugin {
namespace {

using namespace gpushm_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using containers = std::vector<std::vector<std::string>>;

configuration strategies(std::set<device_list_strategy> lists, const std::string& text = "") {
  configuration settings = parse_configuration(text, "config");
  settings.flags.device_list = std::move(lists);
  return settings;
}

plan_options no_shares() {
  plan_options options;
  options.share_replicas = 0;
  return options;
}

TEST(plugin_allocate, variable_lists_each_device_once) {
  const planned plan =
      make_plan(strategies({device_list_strategy::envvar},
                           "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"),
                no_shares(),
                whole_gpus(3));
  const std::string a = uuid_of_gpu(2);
  const std::string b = uuid_of_gpu(0);
  const auto responses =
      plan.resources[0]->allocate(containers{{a + "::3", b + "::0", a + "::1"}, {b + "::1"}});
  ASSERT_EQ(responses.size(), 2U);
  allocation first;
  first.envs = {{"NVIDIA_VISIBLE_DEVICES", a + "," + b}};
  EXPECT_EQ(responses[0], first);
  EXPECT_EQ(responses[1].envs.at("NVIDIA_VISIBLE_DEVICES"), b);
}

TEST(plugin_allocate, volume_mounts_name_devices_and_variable_names_directory) {
  const planned plan =
      make_plan(strategies({device_list_strategy::envvar, device_list_strategy::volume_mounts}),
                no_shares(),
                whole_gpus(2));
  const auto responses = plan.resources[0]->allocate(containers{{uuid_of_gpu(1), uuid_of_gpu(0)}});
  allocation expected;
  expected.envs = {{"NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"}};
  expected.mounts = {{"/var/run/nvidia-container-devices/" + uuid_of_gpu(1), "/dev/null", false},
                     {"/var/run/nvidia-container-devices/" + uuid_of_gpu(0), "/dev/null", false}};
  EXPECT_THAT(responses, ElementsAre(expected));
}

TEST(plugin_allocate, index_strategy_uses_indices) {
  configuration settings = strategies({device_list_strategy::envvar});
  settings.flags.device_id = device_id_strategy::index;
  settings.flags.mig = mig_strategy::mixed;
  settings.flags.gds = true;
  const planned plan = make_plan(
      settings, no_shares(), make_inventory({make_gpu(0, {"1g.5gb", "1g.5gb"}), make_gpu(1)}));
  const auto parts = resource_named(plan, "nvidia.com/mig-1g.5gb")
                         .allocate(containers{{uuid_of_instance(0, 1), uuid_of_instance(0, 0)}});
  EXPECT_EQ(parts[0].envs,
            (std::map<std::string, std::string>{{"NVIDIA_VISIBLE_DEVICES", "0:1,0:0"},
                                                {"NVIDIA_GDS", "enabled"}}));
  EXPECT_EQ(resource_named(plan, "nvidia.com/gpu")
                .allocate(containers{{uuid_of_gpu(1)}})[0]
                .envs.at("NVIDIA_VISIBLE_DEVICES"),
            "1");
}

TEST(plugin_allocate, invalid_requests_are_rejected_without_effect) {
  const planned plan = make_plan(
      strategies(
          {device_list_strategy::envvar},
          "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, "
          "devices: [0], replicas: 2}]}}"),
      no_shares(),
      whole_gpus(3));
  const resource& gpus = *plan.resources[0];
  const auto before = gpus.devices();
  const auto rejection = [&](const containers& expected) {
    return what([&] { static_cast<void>(gpus.allocate(expected)); });
  };
  const std::string start = "allocate \"nvidia.com/gpu\": ";
  const std::string stale =
      " (the kubelet's list of devices is stale; the plugin sends the current one)";
  const std::string a = uuid_of_gpu(0);
  const std::string b = uuid_of_gpu(1);
  EXPECT_EQ(rejection({{}}), start + "no device is named (request at least one)");
  for (const std::string& unknown : {std::string("GPU-x"),
                                     a,
                                     a + "::2",
                                     a + "::02",
                                     a + "::-1",
                                     a + "::",
                                     a + "::1::1",
                                     b + "::0",
                                     std::string()}) {
    EXPECT_EQ(rejection({{b}, {unknown}}),
              start + "there is no device \"" + unknown + "\"" + stale);
  }
  EXPECT_EQ(rejection({{b, b}}),
            start + "device \"" + b + "\" is named twice (name each device once)");
  EXPECT_EQ(rejection({{b}, {uuid_of_gpu(2), b}}),
            start + "device \"" + b + "\" is named twice (name each device once)");
  EXPECT_EQ(rejection({{a + "::0", a + "::1"}}),
            start +
                "a container requests 2 devices, but failRequestsGreaterThanOne allows one: more "
                "replicas are not a larger share of a GPU (request one, or set "
                "sharing.timeSlicing.failRequestsGreaterThanOne: false)");
  EXPECT_EQ(rejection({{a + "::0"}, {a + "::1"}}), "nothing");
  EXPECT_EQ(rejection({{b, uuid_of_gpu(2)}}), "nothing");
  plan.set_health(b, false, "Xid 79 (the GPU has fallen off the bus)");
  EXPECT_EQ(
      rejection({{b}}),
      start + "device \"" + b + "\" is unhealthy: Xid 79 (the GPU has fallen off the bus)" + stale);
  plan.set_health(b, true, "");
  EXPECT_EQ(gpus.devices(), before);
}

/// A root with a driver and device nodes, for CDI documents.
class plugin_allocate_cdi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_make_nodes(root_.path())) {
      GTEST_SKIP() << "this process may not create device nodes";
    }
    put_file(root_ / "usr/lib64/libcuda.so.550.54.15", elf_stub("libcuda.so.1"));
    for (const char* name : {"nvidiactl",
                             "nvidia-uvm",
                             "nvidia-uvm-tools",
                             "nvidia0",
                             "nvidia1",
                             "nvidia-caps/nvidia-cap12",
                             "nvidia-caps/nvidia-cap13"}) {
      put_node(root_.path() + "/dev/" + name);
    }
    put_file(root_ / "proc/driver/nvidia-caps/mig-minors",
             "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n");
    options_.share_replicas = 2;
    options_.places.driver_root = root_.path();
    options_.places.proc_root = root_ / "proc";
    options_.places.sys_root = root_ / "sys";
    options_.places.hook_path = "/var/lib/kubelet/plugins/gpushm.dev/gpushm-cdi-hook";
  }

  gpushm_testing::temp_dir root_;
  plan_options options_;
};

TEST_F(plugin_allocate_cdi, cdi_document_names_devices_by_uuid) {
  const planned plan = make_plan({}, options_, whole_gpus(2));
  EXPECT_EQ(plan.gpus.kind, "k8s.device-plugin.gpushm.dev/gpu");
  ASSERT_EQ(plan.gpus.devices.size(), 2U);
  EXPECT_EQ(plan.gpus.devices[1].name, uuid_of_gpu(1));
  EXPECT_EQ(plan.gpus.changes.hooks.at(0).path, options_.places.hook_path);
  allocation expected;
  expected.cdi_devices = {"k8s.device-plugin.gpushm.dev/gpu=" + uuid_of_gpu(1)};
  EXPECT_THAT(plan.resources[0]->allocate(containers{{uuid_of_gpu(1)}}), ElementsAre(expected));
}

TEST_F(plugin_allocate_cdi, annotation_keys_are_unique) {
  const configuration settings =
      strategies({device_list_strategy::cdi_annotations},
                 "flags: {plugin: {cdiAnnotationPrefix: cdi.example.com/}}");
  const planned plan = make_plan(settings, options_, whole_gpus(2));
  const auto responses = plan.resources[0]->allocate(containers{{uuid_of_gpu(0), uuid_of_gpu(1)}});
  ASSERT_EQ(responses.at(0).annotations.size(), 1U);
  const auto& [key, value] = *responses[0].annotations.begin();
  EXPECT_TRUE(std::regex_match(
      key,
      std::regex("cdi\\.example\\.com/gpushm-device-plugin_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-"
                 "[89ab][0-9a-f]{3}-[0-9a-f]{12}")))
      << key;
  EXPECT_EQ(value,
            "k8s.device-plugin.gpushm.dev/gpu=" + uuid_of_gpu(0) +
                ",k8s.device-plugin.gpushm.dev/gpu=" + uuid_of_gpu(1));
  EXPECT_THAT(responses[0].cdi_devices, IsEmpty());
  const auto again = plan.resources[0]->allocate(containers{{uuid_of_gpu(0)}});
  EXPECT_NE(again.at(0).annotations.begin()->first, key);
}

TEST_F(plugin_allocate_cdi, gpu_without_device_node_is_not_offered) {
  const planned plan = make_plan({}, options_, whole_gpus(3));
  EXPECT_THAT(ids_of(*plan.resources[0]), ElementsAre(uuid_of_gpu(0), uuid_of_gpu(1)));
  EXPECT_THAT(plan.warnings,
              ElementsAre("GPU 2 (" + uuid_of_gpu(2) + ") is left out: missing device node " +
                          (root_ / "dev/nvidia2")));
}

TEST_F(plugin_allocate_cdi, missing_driver_offers_only_shares) {
  std::filesystem::remove_all(root_ / "usr");
  const planned plan = make_plan({}, options_, whole_gpus(2));
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 0", "gpushm.dev/share 2"));
  ASSERT_EQ(plan.warnings.size(), 1U);
  EXPECT_THAT(plan.warnings[0], HasSubstr("no GPU is offered: "));
  EXPECT_THAT(plan.gpus.devices, IsEmpty());
}

TEST_F(plugin_allocate_cdi, strategy_none_describes_the_whole_mig_gpu) {
  const inventory inventory = make_inventory({make_gpu(0, {"1g.5gb"})});
  const planned plan = make_plan({}, options_, inventory);
  ASSERT_EQ(plan.gpus.devices.size(), 1U);
  EXPECT_EQ(plan.gpus.devices[0].name, uuid_of_gpu(0));
  configuration mixed;
  mixed.flags.mig = mig_strategy::mixed;
  const planned partitioned = make_plan(mixed, options_, inventory);
  ASSERT_EQ(partitioned.gpus.devices.size(), 1U);
  EXPECT_EQ(partitioned.gpus.devices[0].name, uuid_of_instance(0, 0));
  EXPECT_EQ(partitioned.gpus.devices[0].changes.device_nodes.size(), 3U);
}

TEST_F(plugin_allocate_cdi, nodes_are_passed_without_cdi) {
  configuration settings = strategies({device_list_strategy::envvar});
  settings.flags.pass_device_specs = true;
  settings.flags.mig = mig_strategy::mixed;
  settings.imex.channel_zero = true;
  put_node(root_ / "dev/nvidia-caps-imex-channels/channel0");
  const planned plan =
      make_plan(settings, options_, make_inventory({make_gpu(0, {"1g.5gb"}), make_gpu(1)}));
  const auto responses =
      resource_named(plan, "nvidia.com/mig-1g.5gb").allocate(containers{{uuid_of_instance(0, 0)}});
  std::vector<std::string> paths;
  for (const device_node& each : responses[0].nodes) {
    EXPECT_EQ(each.host_path, root_.path() + each.container_path);
    EXPECT_EQ(each.permissions, "rw");
    paths.push_back(each.container_path);
  }
  EXPECT_THAT(paths,
              ElementsAre("/dev/nvidia-uvm-tools",
                          "/dev/nvidia-uvm",
                          "/dev/nvidiactl",
                          "/dev/nvidia-caps-imex-channels/channel0",
                          "/dev/nvidia0",
                          "/dev/nvidia-caps/nvidia-cap12",
                          "/dev/nvidia-caps/nvidia-cap13"));
  EXPECT_EQ(responses[0].envs.at("NVIDIA_IMEX_CHANNELS"), "0");
  EXPECT_THAT(plan.gpus.devices, IsEmpty());
}

TEST_F(plugin_allocate_cdi, missing_required_imex_channel_offers_no_gpu) {
  configuration settings;
  settings.imex = {true, true};
  const std::string path = root_ / "dev/nvidia-caps-imex-channels/channel0";
  const planned none = make_plan(settings, options_, whole_gpus(1));
  EXPECT_THAT(names_of(none), ElementsAre("nvidia.com/gpu 0", "gpushm.dev/share 2"));
  EXPECT_THAT(
      none.warnings,
      ElementsAre("no GPU is offered: imex.channelIDs names channel 0, which has no device node "
                  "" +
                  path));
  put_node(path);
  const planned plan = make_plan(settings, options_, whole_gpus(1));
  EXPECT_EQ(plan.gpus.changes.device_nodes.back().path, "/dev/nvidia-caps-imex-channels/channel0");
  EXPECT_EQ(plan.gpus.changes.device_nodes.back().host_path, path);
}

TEST_F(plugin_allocate_cdi, special_devices_are_added_if_requested) {
  const configuration settings = parse_configuration(
      "flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true}", "c");
  const auto added = [&](const configuration& each, std::vector<std::string>* mounts) {
    std::vector<std::string> paths;
    const planned plan = make_plan(each, options_, whole_gpus(1));
    for (const cdi::device_node& node : plan.gpus.changes.device_nodes) {
      if (node.path.find("nvidia-uvm") == std::string::npos && node.path != "/dev/nvidiactl") {
        EXPECT_EQ(node.host_path, root_.path() + node.path);
        paths.push_back(node.path);
      }
    }
    for (const cdi::mount& mount : plan.gpus.changes.mounts) {
      if (mount.container_path == "/etc/cufile.json" || mount.container_path == "/run/udev") {
        EXPECT_EQ(mount.host_path, root_.path() + mount.container_path);
        mounts->push_back(mount.container_path);
      }
    }
    return paths;
  };
  std::vector<std::string> mounts;
  EXPECT_THAT(added(settings, &mounts), IsEmpty());
  EXPECT_THAT(
      make_plan(settings, options_, whole_gpus(1)).warnings,
      ElementsAre(
          "flags.gdsEnabled has no effect: this node has no /dev/nvidia-fs* (on the node: modprobe "
          "nvidia-fs)",
          "flags.mofedEnabled has no effect: this node has no /dev/infiniband/uverbs* (on "
          "the node: modprobe -a ib_uverbs rdma_ucm)",
          "flags.gdrcopyEnabled has no effect: this node has no /dev/gdrdrv (on the node: "
          "modprobe gdrdrv)"));
  for (const char* name :
       {"nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/rdma_cm", "gdrdrv"}) {
    put_node(root_.path() + "/dev/" + name);
  }
  put_file(root_ / "etc/cufile.json", "{}");
  std::filesystem::create_directories(root_.path() + "/run/udev");
  EXPECT_THAT(added(settings, &mounts),
              ElementsAre("/dev/nvidia-fs0",
                          "/dev/nvidia-fs1",
                          "/dev/infiniband/uverbs0",
                          "/dev/infiniband/rdma_cm",
                          "/dev/gdrdrv"));
  EXPECT_THAT(mounts, ElementsAre("/etc/cufile.json", "/run/udev"));
  EXPECT_THAT(make_plan(settings, options_, whole_gpus(1)).warnings, IsEmpty());
  EXPECT_THAT(added(parse_configuration("flags: {gdrcopyEnabled: true}", "c"), &mounts),
              ElementsAre("/dev/gdrdrv"));
  EXPECT_THAT(added({}, &mounts), IsEmpty());
}

TEST_F(plugin_allocate_cdi, documents_are_written_and_stale_ones_removed) {
  const std::string directory = root_ / "cdi/below";
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(directory)) {
      names.insert(each.path().filename().string());
    }
    return names;
  };
  const planned plan = make_plan({}, options_, whole_gpus(2));
  write_documents(plan, directory);
  EXPECT_EQ(files(),
            (std::set<std::string>{std::string(gpu_file_name), std::string(share_file_name)}));
  std::ifstream file(directory + "/" + std::string(gpu_file_name));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto parsed = cdi::parse(text, "gpushm-device-plugin.json");
  EXPECT_EQ(parsed.content, plan.gpus);
  options_.share_replicas = 0;
  write_documents(make_plan({}, options_, whole_gpus(1)), directory);
  EXPECT_EQ(files(), (std::set<std::string>{std::string(gpu_file_name)}));
  write_documents(make_plan({}, options_, {}), directory);
  EXPECT_EQ(files(), std::set<std::string>{});
  write_documents(make_plan({}, options_, {}), root_ / "never/created");
  EXPECT_FALSE(std::filesystem::exists(root_ / "never"));
}

}  // namespace
}  // namespace gpushm::device_plugin
