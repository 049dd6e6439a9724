// SPDX-License-Identifier: Apache-2.0
// The resources that a node offers, depending on its GPUs and its configuration.
#include "kubernetes/device_plugin/plan/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "kubernetes/device_plugin/plan/naming.hpp"
#include "kubernetes/device_plugin/plan/parts.hpp"
#include "tests/kubelet/plugin/world.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::device_plugin {
namespace {

using namespace gpushm_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Does not use CDI, so that no files are needed.
configuration by_variable(const std::string& text = "") {
  configuration settings = parse_configuration(text, "config");
  settings.flags.device_list = {device_list_strategy::envvar};
  return settings;
}

plan_options no_shares() {
  plan_options options;
  options.share_replicas = 0;
  return options;
}

planned plan_of(const std::string& text,
                const inventory& inventory,
                plan_options options = no_shares()) {
  return make_plan(by_variable(text), options, inventory);
}

configuration with_mig(mig_strategy strategy) {
  configuration settings = by_variable();
  settings.flags.mig = strategy;
  return settings;
}

const std::vector<std::string> a100_seven{
    "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"};

TEST(plugin_plan, whole_gpus_are_one_resource_in_order_with_numa_nodes) {
  const planned plan = plan_of("", whole_gpus(3));
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 3"));
  EXPECT_EQ(plan.resources[0]->devices(),
            (std::vector<device>{
                {uuid_of_gpu(0), true, 0}, {uuid_of_gpu(1), true, 1}, {uuid_of_gpu(2), true, 0}}));
  EXPECT_TRUE(plan.resources[0]->has_preferences());
  EXPECT_THAT(plan.warnings, IsEmpty());
  EXPECT_THAT(plan.notes, ElementsAre("nvidia.com/gpu: 3 devices"));
}

std::string replicas(int count) {
  return "sharing: {timeSlicing: {resources: [{name: gpu, replicas: " + std::to_string(count) +
         "}]}}";
}

TEST(plugin_plan, replicas_are_limited_by_the_list_that_a_kubelet_reads) {
  EXPECT_THAT(names_of(plan_of(replicas(16'384), whole_gpus(2))),
              ElementsAre("nvidia.com/gpu 32768"));
  EXPECT_THAT(names_of(plan_of(replicas(50'000), whole_gpus(1))),
              ElementsAre("nvidia.com/gpu 50000"));
  EXPECT_EQ(what([] { static_cast<void>(plan_of(replicas(16'384), whole_gpus(8))); }),
            "plan resources \"nvidia.com/gpu\": its 131072 devices are a list of 9.7 MiB, and a "
            "kubelet reads lists of up to 4 MiB (reduce the replicas: the list has room for about "
            "54244 devices)");
}

TEST(plugin_plan, many_replicas_are_chosen_and_allocated_quickly) {
  const planned plan = plan_of(replicas(16'384), whole_gpus(2));
  const resource& gpus = *plan.resources[0];
  std::vector<std::string> ids;
  for (const device& each : gpus.devices()) {
    ids.push_back(each.id);
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> chosen = gpus.prefer(ids, {}, 2);
  EXPECT_THAT(chosen, ElementsAre(uuid_of_gpu(0) + "::0", uuid_of_gpu(1) + "::0"));
  EXPECT_EQ(gpus.allocate(std::vector<std::vector<std::string>>{chosen}).size(), 1U);
  // The kubelet gives up after 10 s; this takes milliseconds.
  EXPECT_LT(std::chrono::steady_clock::now() - start,
            gpushm_testing::wait_limit(std::chrono::seconds(10)));
}

TEST(plugin_plan, no_gpus_yield_empty_resource_and_reason) {
  inventory none;
  none.problem = "load NVML \"libnvidia-ml.so.1\": library not found";
  const planned plan = plan_of("", none);
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 0"));
  EXPECT_THAT(plan.warnings,
              ElementsAre("no GPU is offered: load NVML \"libnvidia-ml.so.1\": library not found"));
  plan_options off = no_shares();
  off.gpus = false;
  EXPECT_THAT(plan_of("", none, off).resources, IsEmpty());
}

TEST(plugin_plan, unresponsive_gpu_is_reported) {
  inventory found = whole_gpus(1);
  found.left_out = {"GPU 1: nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST (15)"};
  EXPECT_THAT(plan_of("", found).warnings,
              ElementsAre("GPU 1: nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST (15) (it is "
                          "not offered)"));
}

TEST(plugin_plan, first_matching_pattern_names_the_gpu) {
  inventory inventory = whole_gpus(3);
  inventory.gpus[1].name = "NVIDIA A100-SXM4-40GB";
  inventory.gpus[2].name = "NVIDIA L4";
  const planned plan = plan_of(
      "resources: {gpus: [{pattern: 'A100', name: a100}, {pattern: 'NVIDIA*H100', name: "
      "example.com/h100}, {pattern: 'A100-SXM', name: never}]}",
      inventory);
  EXPECT_THAT(names_of(plan),
              ElementsAre("example.com/h100 1", "nvidia.com/a100 1", "nvidia.com/gpu 1"));
}

TEST(plugin_plan, asterisks_match_any_text) {
  for (const char* good : {"abc", "a*c", "*", "a*", "*c", "*b*", "a*b*c", "ab*c", "**"}) {
    EXPECT_TRUE(matches(good, "abc", true)) << good;
    EXPECT_TRUE(matches(good, "xabcx", false)) << good;
  }
  for (const char* bad : {"b", "ab", "bc", "a*b", "b*c", "abcd", "a*d*c", "", "abc*c", "ab*bc"}) {
    EXPECT_FALSE(matches(bad, "abc", true)) << bad;
  }
  EXPECT_TRUE(matches("", "abc", false));
  EXPECT_FALSE(matches("c*a", "abc", false));
  EXPECT_FALSE(matches("a.c", "abc", false));
}

// ---- MIG ----

TEST(plugin_plan, strategy_none_offers_whole_mig_gpu_with_warning) {
  const inventory inventory = make_inventory({make_gpu(0, a100_seven), make_gpu(1)});
  const planned plan = make_plan(with_mig(mig_strategy::none), no_shares(), inventory);
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 2"));
  EXPECT_THAT(
      plan.warnings,
      ElementsAre("GPU 0 (" + uuid_of_gpu(0) +
                  ") has MIG enabled and is offered whole because of MIG strategy none: programs "
                  "cannot use its instances (set migStrategy to single or mixed)"));
}

TEST(plugin_plan, strategy_single_offers_instances_as_gpus) {
  const inventory inventory = make_inventory({make_gpu(0, a100_seven), make_gpu(1, a100_seven)});
  const planned plan = make_plan(with_mig(mig_strategy::single), no_shares(), inventory);
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 14"));
  EXPECT_EQ(ids_of(*plan.resources[0]).front(), uuid_of_instance(0, 0));
  EXPECT_THAT(plan.warnings, IsEmpty());
  EXPECT_THAT(names_of(make_plan(with_mig(mig_strategy::single), no_shares(), whole_gpus(2))),
              ElementsAre("nvidia.com/gpu 2"));
}

TEST(plugin_plan, strategy_single_rejects_mixed_layout_with_reason) {
  const auto warning_of = [](std::vector<gpu_info> gpus) {
    const planned plan =
        make_plan(with_mig(mig_strategy::single), no_shares(), make_inventory(std::move(gpus)));
    EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 0"));
    return plan.warnings.at(0);
  };
  const std::string start =
      "no GPU is offered: MIG strategy single requires all GPUs to be "
      "partitioned alike, or none, but ";
  const std::string end = " (set migStrategy to mixed, or partition them alike)";
  EXPECT_EQ(warning_of({make_gpu(0, {"3g.20gb", "2g.10gb", "1g.5gb"})}),
            start + "instances have several profiles: 1g.5gb, 2g.10gb, 3g.20gb" + end);
  EXPECT_EQ(warning_of({make_gpu(0, a100_seven), make_gpu(1)}),
            start + "MIG is enabled for 1 of 2 GPUs" + end);
  gpu_info empty = make_gpu(0);
  empty.entry.mig_enabled = true;
  EXPECT_EQ(warning_of({empty}),
            start + "GPU 0 (" + uuid_of_gpu(0) + ") has MIG enabled but no instances" + end);
}

TEST(plugin_plan, strategy_mixed_offers_a_resource_per_profile) {
  const inventory inventory = make_inventory({make_gpu(0, {"3g.40gb", "1g.20gb", "1g.10gb+me"}),
                                              make_gpu(1),
                                              make_gpu(2, {"2c.4g.40gb", "3g.40gb", ""})});
  const planned plan = make_plan(with_mig(mig_strategy::mixed), no_shares(), inventory);
  EXPECT_THAT(names_of(plan),
              ElementsAre("nvidia.com/mig-3g.40gb 2",
                          "nvidia.com/mig-1g.20gb 1",
                          "nvidia.com/mig-1g.10gb.me 1",
                          "nvidia.com/gpu 1",
                          "nvidia.com/mig-2c.4g.40gb 1"));
  EXPECT_THAT(plan.warnings,
              ElementsAre("GPU 2 (" + uuid_of_gpu(2) +
                          ") has an instance that is not offered: NVML does not report the "
                          "profile of " +
                          uuid_of_instance(2, 2)));
}

TEST(plugin_plan, profile_patterns_match_whole_names) {
  configuration settings = by_variable(
      "resources: {mig: [{pattern: 1g.10gb, name: small}, {pattern: '3g.*', name: large}]}");
  settings.flags.mig = mig_strategy::mixed;
  const inventory found = make_inventory({make_gpu(0, {"3g.40gb", "1g.10gb", "1g.10gb+me"})});
  EXPECT_THAT(
      names_of(make_plan(settings, no_shares(), found)),
      ElementsAre("nvidia.com/large 1", "nvidia.com/small 1", "nvidia.com/mig-1g.10gb.me 1"));
}

// ---- time-slicing ----

TEST(plugin_plan, replicas_are_numbered_and_keep_their_resource_name) {
  const std::string text =
      "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}";
  const planned plan = plan_of(text, whole_gpus(2));
  EXPECT_THAT(ids_of(*plan.resources.at(0)),
              ElementsAre(uuid_of_gpu(0) + "::0",
                          uuid_of_gpu(0) + "::1",
                          uuid_of_gpu(0) + "::2",
                          uuid_of_gpu(1) + "::0",
                          uuid_of_gpu(1) + "::1",
                          uuid_of_gpu(1) + "::2"));
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 6"));
  EXPECT_THAT(names_of(plan_of("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: "
                               "nvidia.com/gpu, replicas: 3}]}}",
                               whole_gpus(2))),
              ElementsAre("nvidia.com/gpu.shared 6"));
}

TEST(plugin_plan, devices_can_be_replicated_individually) {
  const auto offered = [](const std::string& devices) {
    return names_of(plan_of(
        "sharing: {timeSlicing: {resources: [{name: gpu, rename: some, devices: " + devices +
            ", replicas: 4}]}}",
        whole_gpus(4)));
  };
  EXPECT_THAT(offered("all"), ElementsAre("nvidia.com/some 16"));
  EXPECT_THAT(offered("1"), ElementsAre("nvidia.com/gpu 3", "nvidia.com/some 4"));
  EXPECT_THAT(offered("[0, 2]"), ElementsAre("nvidia.com/gpu 2", "nvidia.com/some 8"));
  EXPECT_THAT(offered("[" + uuid_of_gpu(3) + "]"),
              ElementsAre("nvidia.com/gpu 3", "nvidia.com/some 4"));
  EXPECT_THAT(offered("[3, " + uuid_of_gpu(3) + "]"),
              ElementsAre("nvidia.com/gpu 3", "nvidia.com/some 4"));
}

TEST(plugin_plan, first_matching_entry_gets_the_device) {
  const planned plan = plan_of(
      "sharing: {timeSlicing: {resources: [{name: gpu, devices: [1], replicas: 2, rename: a}, "
      "{name: gpu, devices: all, replicas: 3, rename: b}]}}",
      whole_gpus(2));
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/a 2", "nvidia.com/b 3"));
}

TEST(plugin_plan, replicated_and_other_devices_can_share_a_name) {
  const planned plan =
      plan_of("sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}",
              whole_gpus(2));
  EXPECT_THAT(ids_of(*plan.resources.at(0)),
              ElementsAre(uuid_of_gpu(1), uuid_of_gpu(0) + "::0", uuid_of_gpu(0) + "::1"));
}

TEST(plugin_plan, missing_devices_are_reported_and_others_replicated) {
  const planned plan = plan_of(
      "sharing: {timeSlicing: {resources: [{name: gpu, devices: [0, 5, '0:1'], replicas: 2}, "
      "{name: "
      "mig-1g.5gb, replicas: 3}]}}",
      whole_gpus(1));
  EXPECT_THAT(names_of(plan), ElementsAre("nvidia.com/gpu 2"));
  EXPECT_THAT(plan.warnings,
              ElementsAre("device 5 of nvidia.com/gpu is to be replicated but does not exist",
                          "device 0:1 of nvidia.com/gpu is to be replicated but does not exist"));
  const planned fewer = plan_of(
      "sharing: {timeSlicing: {resources: [{name: gpu, devices: 3, replicas: 2}]}}", whole_gpus(2));
  EXPECT_THAT(names_of(fewer), ElementsAre("nvidia.com/gpu 4"));
  EXPECT_THAT(
      fewer.warnings,
      ElementsAre(
          "3 devices of nvidia.com/gpu are to be replicated, but the number of devices is 2"));
}

TEST(plugin_plan, instances_are_replicated_by_index_or_uuid) {
  configuration settings =
      by_variable("sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, devices: ['0:1', " +
                  uuid_of_instance(0, 2) + "], rename: shared, replicas: 2}]}}");
  settings.flags.mig = mig_strategy::mixed;
  const planned plan = make_plan(
      settings, no_shares(), make_inventory({make_gpu(0, {"1g.5gb", "1g.5gb", "1g.5gb"})}));
  EXPECT_THAT(ids_of(resource_named(plan, "nvidia.com/shared")),
              ElementsAre(uuid_of_instance(0, 1) + "::0",
                          uuid_of_instance(0, 1) + "::1",
                          uuid_of_instance(0, 2) + "::0",
                          uuid_of_instance(0, 2) + "::1"));
  EXPECT_THAT(ids_of(resource_named(plan, "nvidia.com/mig-1g.5gb")),
              ElementsAre(uuid_of_instance(0, 0)));
}

// ---- per-GPU resources and shares ----

TEST(plugin_plan, per_gpu_resources_are_requestable_by_several_pods) {
  plan_options options = no_shares();
  options.per_gpu_resources = true;
  const inventory inventory = make_inventory({make_gpu(0), make_gpu(1, a100_seven), make_gpu(2)});
  configuration settings = with_mig(mig_strategy::mixed);
  const planned plan = make_plan(settings, options, inventory);
  EXPECT_THAT(names_of(plan),
              ElementsAre("nvidia.com/mig-1g.5gb 7", "gpushm.dev/gpu-0 16", "gpushm.dev/gpu-2 16"));
  EXPECT_EQ(ids_of(*plan.resources.back()).back(), uuid_of_gpu(2) + "::15");
  options.per_gpu_replicas = 0;
  EXPECT_EQ(what([&] { static_cast<void>(make_plan(settings, options, inventory)); }),
            "plan resources \"nvidia.com/gpu\": per-GPU resources would have no device (set at "
            "least one replica for per-GPU resources"
            ")");
}

// Two pods that request different resources must not silently get the same GPU.
TEST(plugin_plan, no_gpu_is_in_two_resources) {
  plan_options options = no_shares();
  options.per_gpu_resources = true;
  for (const char* file :
       {"",
        "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}]}}",
        "sharing: {timeSlicing: {resources: [{name: gpu, devices: [1], rename: s, replicas: 3}]}}",
        "resources: {gpus: [{pattern: '*', name: a100}]}"}) {
    const planned plan = plan_of(file, whole_gpus(3), options);
    std::map<std::string, std::set<std::string>> resources;  // by GPU
    for (const auto& each : plan.resources) {
      for (const std::string& id : ids_of(*each)) {
        resources[id.substr(0, id.find("::"))].insert(each->name());
      }
    }
    EXPECT_EQ(resources.size(), 3U) << file;
    for (const auto& [gpu, names] : resources) {
      EXPECT_EQ(names.size(), 1U) << file << ' ' << gpu;
    }
  }
  // Whole GPUs are reported as zero, so that a kubelet that had them drops them.
  EXPECT_THAT(names_of(plan_of("", whole_gpus(2), options)),
              ElementsAre("gpushm.dev/gpu-0 16", "gpushm.dev/gpu-1 16", "nvidia.com/gpu 0"));
}

TEST(plugin_plan, invalid_and_duplicate_names_are_rejected) {
  plan_options options = no_shares();
  options.gpu_resource_name = "gpu";
  EXPECT_EQ(what([&] { static_cast<void>(plan_of("", whole_gpus(1), options)); }),
            "plan resources \"gpu\": not a resource name: it has no domain (write a name "
            "like nvidia.com/gpu)");
  options.gpu_resource_name = "nvidia.com/gpu";
  options.per_gpu_resources = true;
  EXPECT_EQ(what([&] {
              static_cast<void>(plan_of(
                  "resources: {gpus: [{pattern: 'NVIDIA *', name: a}], migs: []}\nsharing: "
                  "{timeSlicing: {resources: [{name: a, devices: [0], rename: gpushm.dev/gpu-1, "
                  "replicas: 2}]}}",
                  whole_gpus(2),
                  options));
            }),
            "plan resources \"gpushm.dev/gpu-1\": two different resources would have this name "
            "(rename one of them in the configuration)");
}

TEST(plugin_plan, each_domain_is_a_resource_with_replicas) {
  plan_options options;
  options.gpus = false;
  options.domains = {"default", "team-a"};
  options.share_replicas = 3;
  options.domains_on_host = "/srv/gpushm/d";
  const planned plan = make_plan(by_variable(), options, {});
  EXPECT_THAT(names_of(plan), ElementsAre("gpushm.dev/share 3", "gpushm.dev/share-team-a 3"));
  EXPECT_THAT(ids_of(*plan.resources[0]), ElementsAre("default::0", "default::1", "default::2"));
  EXPECT_FALSE(plan.resources[0]->has_preferences());
  const auto responses = plan.resources[1]->allocate(
      std::vector<std::vector<std::string>>{{"team-a::2", "team-a::0"}});
  allocation expected;
  expected.mounts = {{"/run/gpushm/d/team-a", "/srv/gpushm/d/team-a", true}};
  EXPECT_THAT(responses, ElementsAre(expected));

  configuration cdi = by_variable();
  cdi.flags.device_list = {device_list_strategy::cdi_cri, device_list_strategy::envvar};
  const auto by_cdi = make_plan(cdi, options, {})
                          .resources[0]
                          ->allocate(std::vector<std::vector<std::string>>{{"default::1"}});
  expected = {};
  expected.cdi_devices = {"gpushm.dev/share=default"};
  EXPECT_THAT(by_cdi, ElementsAre(expected));
  ASSERT_EQ(plan.shares.devices.size(), 2U);
  EXPECT_EQ(plan.shares.kind, "gpushm.dev/share");
  EXPECT_EQ(plan.shares.devices[1].changes.mounts.at(0).host_path, "/srv/gpushm/d/team-a");
  options.domains = {"a", "a"};
  EXPECT_EQ(what([&] { static_cast<void>(make_plan(cdi, options, {})); }),
            "plan resources \"a\": the domain is named twice (name each domain once)");
}

TEST(plugin_plan, each_domain_is_also_a_resource_of_unchanged_programs) {
  plan_options options;
  options.gpus = false;
  options.domains = {"default", "team-a"};
  options.share_replicas = 3;
  options.domains_on_host = "/srv/gpushm/d";
  options.ipc = cdi::ipc_files{"/k/ipc", "/k/gpushm-cdi-hook"};
  const planned plan = make_plan(configuration(), options, {});
  EXPECT_THAT(names_of(plan),
              ElementsAre("gpushm.dev/share 3",
                          "gpushm.dev/share-team-a 3",
                          "gpushm.dev/ipc 3",
                          "gpushm.dev/ipc-team-a 3"));
  allocation expected;
  expected.cdi_devices = {"gpushm.dev/ipc=team-a"};
  EXPECT_THAT(plan.resources[3]->allocate(std::vector<std::vector<std::string>>{{"team-a::1"}}),
              ElementsAre(expected));
  EXPECT_EQ(plan.ipc, cdi::ipc_document(options.domains, *options.ipc, "/srv/gpushm/d"));
  EXPECT_EQ(plan.set_share_health("team-a", false, "away"), 6U);

  // Without CDI, no hook can run.
  const planned without = make_plan(by_variable(), options, {});
  EXPECT_THAT(names_of(without), ElementsAre("gpushm.dev/share 3", "gpushm.dev/share-team-a 3"));
  EXPECT_THAT(without.ipc.devices, IsEmpty());
  EXPECT_THAT(without.warnings,
              ElementsAre("gpushm.dev/ipc is not offered: its devices have a hook, which needs CDI "
                          "(--device-list-strategy cdi-cri)"));
}

TEST(plugin_plan, ids_fit_the_kubelet_limit) {
  const std::string common(80, 'd');
  const std::string a = short_id(common + "a", 64);
  const std::string b = short_id(common + "b", 64);
  EXPECT_EQ(a.size() + std::string("::63").size(), max_id_bytes);
  EXPECT_NE(a, b);
  EXPECT_EQ(short_id(std::string(59, 'x'), 64), std::string(59, 'x'));
  EXPECT_NE(short_id(std::string(60, 'x'), 64), std::string(60, 'x'));
  plan_options options;
  options.gpus = false;
  options.domains = {common};
  const planned plan = make_plan(by_variable(), options, {});
  EXPECT_EQ(ids_of(*plan.resources[0]).back().size(), max_id_bytes);
  const auto responses = plan.resources[0]->allocate(
      std::vector<std::vector<std::string>>{{ids_of(*plan.resources[0]).back()}});
  EXPECT_EQ(responses[0].mounts[0].host_path, "/run/gpushm/d/" + common);
}

// ---- health ----

TEST(plugin_plan, gpu_health_applies_to_all_its_devices) {
  plan_options options = no_shares();
  options.per_gpu_resources = true;
  options.per_gpu_replicas = 2;
  configuration settings = by_variable(
      "sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, devices: ['0:0'], replicas: 5, "
      "rename: "
      "cut}, {name: gpu, devices: [2], rename: sliced, replicas: 3}]}}");
  settings.flags.mig = mig_strategy::mixed;
  const planned plan =
      make_plan(settings,
                options,
                make_inventory({make_gpu(0, {"1g.5gb", "3g.20gb"}), make_gpu(1), make_gpu(2)}));
  std::map<std::string, int> changes;
  for (const auto& each : plan.resources) {
    each->on_change([&changes, name = each->name()] { ++changes[name]; });
  }
  const auto unhealthy = [&] {
    std::map<std::string, int> count;
    for (const auto& each : plan.resources) {
      for (const device& one : each->devices()) {
        count[each->name()] += one.healthy ? 0 : 1;
      }
    }
    std::erase_if(count, [](const auto& each) { return each.second == 0; });
    return count;
  };
  using counts = std::map<std::string, int>;
  EXPECT_EQ(plan.set_health(uuid_of_gpu(0), false, "Xid 79"), 6U);
  EXPECT_EQ(unhealthy(), (counts{{"nvidia.com/mig-3g.20gb", 1}, {"nvidia.com/cut", 5}}));
  EXPECT_EQ(changes, (counts{{"nvidia.com/mig-3g.20gb", 1}, {"nvidia.com/cut", 1}}));
  EXPECT_EQ(plan.set_health(uuid_of_gpu(0), false, "Xid 48"), 0U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(1), false, "Xid 79"), 2U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(2), false, "Xid 79"), 3U);
  EXPECT_EQ(unhealthy(),
            (counts{{"nvidia.com/mig-3g.20gb", 1},
                    {"nvidia.com/cut", 5},
                    {"nvidia.com/sliced", 3},
                    {"gpushm.dev/gpu-1", 2}}));
  EXPECT_EQ(plan.set_health("GPU-unknown", false, "Xid 79"), 0U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(0), true, ""), 6U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(1), true, ""), 2U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(2), true, ""), 3U);
  EXPECT_EQ(unhealthy(), counts{});
  EXPECT_EQ(changes["nvidia.com/cut"], 2);
  // One instance: its siblings stay healthy, and it is healthy again only with its GPU.
  const std::string instance = make_gpu(0, {"1g.5gb", "3g.20gb"}).instances.at(1).entry.uuid;
  EXPECT_EQ(plan.set_health(instance, false, "Xid 94"), 1U);
  EXPECT_EQ(unhealthy(), (counts{{"nvidia.com/mig-3g.20gb", 1}}));
  EXPECT_EQ(plan.set_health(uuid_of_gpu(0), false, "Xid 79"), 5U);
  EXPECT_EQ(plan.set_health(instance, true, ""), 0U);
  EXPECT_EQ(plan.set_health(uuid_of_gpu(0), true, ""), 6U);
  EXPECT_EQ(unhealthy(), counts{});
  plan.resources[0]->on_change({});
}

// ---- large nodes ----

TEST(plugin_plan, sixty_four_gpus_with_a_hundred_replicas) {
  const planned plan =
      plan_of("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 100}]}}", whole_gpus(64));
  const auto ids = ids_of(*plan.resources.at(0));
  EXPECT_EQ(ids.size(), 6400U);
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 6400U);
  EXPECT_EQ(ids.back(), uuid_of_gpu(63) + "::99");
  const auto chosen = plan.resources[0]->prefer(ids, {}, 64);
  std::set<std::string> gpus;
  for (const std::string& each : chosen) {
    gpus.insert(each.substr(0, each.find("::")));
  }
  EXPECT_EQ(gpus.size(), 64U);
  const auto responses = plan.resources[0]->allocate(std::vector<std::vector<std::string>>{chosen});
  EXPECT_THAT(responses.at(0).envs.at("NVIDIA_VISIBLE_DEVICES"), HasSubstr(uuid_of_gpu(63)));
}

}  // namespace
}  // namespace gpushm::device_plugin
