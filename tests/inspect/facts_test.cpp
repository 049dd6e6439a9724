// SPDX-License-Identifier: Apache-2.0
// Facts, recordings and predictions from recorded machines and from malformed input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/files/file.hpp"
#include "gpushm/error.hpp"
#include "inspect/doctor/compare.hpp"
#include "inspect/doctor/json.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/facts/recording.hpp"
#include "inspect/topology/json.hpp"
#include "tests/support/machines/machines.hpp"

namespace gpushm_tests {
namespace {

using namespace gpushm::inspect;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(inspect_facts, eight_gpus_behind_switches) {
  const facts facts = recorded_facts("dgx-h100");
  ASSERT_EQ(facts.gpus.size(), 8U);
  EXPECT_EQ(facts.module_version, "550.90.07");
  EXPECT_TRUE(facts.open_module);
  EXPECT_EQ(facts.gpus[2].pci_address, "0000:52:00.0");
  EXPECT_EQ(facts.gpus[2].minor, 2);
  EXPECT_EQ(facts.gpus[2].open_error, 0);
  EXPECT_EQ(facts.gpus[2].numa_node, 0);
  EXPECT_EQ(facts.gpus[5].numa_node, 1);
  EXPECT_THAT(facts.gpus[0].pci_path, ElementsAre("pci0000:15", "0000:15:01.0", "0000:19:00.0"));
  EXPECT_EQ(facts.gpus[0].sharing, "full");
  ASSERT_EQ(facts.pairs.size(), 56U);
  for (const pair_facts& each : facts.pairs) {
    EXPECT_TRUE(each.through_switch);
    EXPECT_EQ(each.links, 18);
    EXPECT_EQ(each.link_version, 4);
    EXPECT_DOUBLE_EQ(each.link_bytes_per_second, 450e9);
    EXPECT_EQ(each.access, true);
    EXPECT_EQ(each.pcie_distance, (each.from < 4) == (each.to < 4) ? "NODE" : "SYS");
  }
  EXPECT_EQ(facts.self.namespaces.at("pid").host, true);
  EXPECT_EQ(facts.self.namespaces.at("net").host, true);
  EXPECT_TRUE(facts.self.container.runtime.empty());
  ASSERT_EQ(facts.toolkits.size(), 1U) << "a link to a toolkit does not count as another toolkit";
  EXPECT_EQ(facts.toolkits[0].version, 12040);
}

TEST(inspect_facts, instances_belong_to_their_gpu) {
  const facts facts = recorded_facts("mig-a100");
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[0].sharing, "mig");
  ASSERT_EQ(facts.gpus[0].cuda.size(), 1U);
  EXPECT_EQ(facts.gpus[0].cuda[0].uuid.substr(0, 4), "MIG-");
  EXPECT_EQ(facts.gpus[0].uuid.substr(0, 4), "GPU-");
  ASSERT_EQ(facts.gpus[0].nvml->mig_instances.size(), 3U);
  EXPECT_EQ(facts.gpus[1].sharing, "full");
  EXPECT_THAT(facts.gpus[1].cuda, IsEmpty()) << "CUDA lists one instance only";
}

TEST(inspect_facts, hidden_gpu_is_listed_by_the_kernel_only) {
  const facts facts = recorded_facts("container-one-of-two");
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[0].open_error, 0);
  EXPECT_EQ(facts.gpus[1].open_error, ENOENT);
  EXPECT_FALSE(facts.gpus[1].nvml.has_value());
  EXPECT_EQ(facts.self.container.runtime, "containerd");
  EXPECT_EQ(facts.self.container.pod_uid, "0f3c6d1e-8a4b-4c5d-9e6f-7a8b9c0d1e2f");
  EXPECT_EQ(facts.self.container.pod_namespace, "team-a");
  EXPECT_EQ(facts.self.namespaces.at("pid").host, false);
  EXPECT_EQ(facts.self.namespaces.at("net").host, std::nullopt);
  EXPECT_EQ(facts.self.capabilities, 0U);
  EXPECT_EQ(facts.self.seccomp, 2);
  EXPECT_TRUE(facts.shm_private);
}

TEST(inspect_facts, gvisor_is_detected_by_kernel_version) {
  const facts facts = recorded_facts("gvisor");
  EXPECT_TRUE(facts.gvisor);
  EXPECT_EQ(facts.self.container.runtime, "gvisor");
  ASSERT_EQ(facts.gpus.size(), 1U) << "only CUDA lists it";
  EXPECT_EQ(facts.gpus[0].minor, -1);
  EXPECT_EQ(facts.gpus[0].open_error, std::nullopt);
}

TEST(inspect_facts, replayed_recording_is_unchanged) {
  for (const std::string& name : machine_names()) {
    const auto text = gpushm::base::read_small_file(machine_path(name), 4UL << 20U);
    const auto first = recorded_machine::parse(name, *text);
    recording_system again(*first.files);
    const facts before = gather(again, [&] { return first.driver; });
    const auto second =
        recorded_machine::parse(name, json{{"recording", again.document(first.driver)}}.dump());
    const facts after = gather(*second.files, [&] { return second.driver; });
    EXPECT_EQ(json(before), json(after)) << name;
  }
}

/// A machine with only these recorded answers.
recorded_machine with(const json& answers) {
  return recorded_machine::parse("test", json{{"format", 1}, {"answers", answers}}.dump());
}
facts facts_of(const json& answers) {
  const auto machine = with(answers);
  return gather(*machine.files, [&] { return machine.driver; });
}

TEST(inspect_facts, empty_machine_is_accepted) {
  const facts facts = facts_of(json::object());
  EXPECT_THAT(facts.gpus, IsEmpty());
  EXPECT_FALSE(facts.xids_readable);
  EXPECT_EQ(facts.shm_bytes, 0U);
  EXPECT_EQ(facts.self.pid, 0);
  EXPECT_FALSE(examine(facts).empty());
}

TEST(inspect_facts, survives_garbage_in_every_file) {
  for (const std::string& name : machine_names()) {
    const auto text = gpushm::base::read_small_file(machine_path(name), 4UL << 20U);
    json document = json::parse(*text);
    for (auto& [path, content] : document["answers"]["files"].items()) {
      const std::string old = content.get<std::string>();
      for (const std::string& garbage : {std::string(),
                                         std::string("\n\n:\n"),
                                         old.substr(0, old.size() / 2),
                                         std::string(3000, '9'),
                                         std::string("\xff\x00\x1b[31m[[[ - - -", 16)}) {
        json changed = document;
        changed["answers"]["files"][path] = garbage;
        // Not serialised to text, because the bytes are not valid UTF-8.
        const auto machine = recorded_machine::parse(
            name, changed.dump(-1, ' ', false, json::error_handler_t::replace));
        const facts all = gather(*machine.files, [&] { return machine.driver; });
        EXPECT_FALSE(examine(all).empty());
      }
    }
  }
}

TEST(inspect_facts, xids_are_read_from_kernel_log) {
  const facts facts =
      facts_of({{"files",
                 {{"/dev/kmsg",
                   "NVRM: Xid (PCI:0000:3B:00): 79, pid=1234, GPU has fallen off the bus.\n"
                   "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, MMU Fault\n"
                   "NVRM: Xid malformed\n"}}}});
  EXPECT_TRUE(facts.xids_readable);
  ASSERT_EQ(facts.xids.size(), 2U);
  EXPECT_EQ(facts.xids[0].number, 79);
  EXPECT_EQ(facts.xids[0].pci_address, "0000:3b:00.0");
  EXPECT_EQ(facts.xids[1].number, 31);
}

TEST(inspect_facts, device_plugin_replicas_are_counted) {
  auto text = gpushm::base::read_small_file(machine_path("dgx-h100"), 4UL << 20U);
  json document = json::parse(*text);
  const std::string gpu = document["driver"]["cuda"]["gpus"][1]["uuid"];
  document["answers"]["files"]["/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"] =
      R"({"Data":{"RegisteredDevices":{"nvidia.com/gpu":[")" + gpu + R"(::0",")" + gpu +
      R"(::3"]}}})";
  const auto machine = recorded_machine::parse("test", document.dump());
  const facts all = gather(*machine.files, [&] { return machine.driver; });
  EXPECT_EQ(all.gpus[1].time_slices, 4);
  EXPECT_EQ(all.gpus[1].sharing, "time-sliced");
  EXPECT_EQ(all.gpus[0].sharing, "full");
}

TEST(inspect_facts, engine_is_detected_by_cgroup_or_mount) {
  const std::string id(64, 'a');
  const auto runtime = [&](const std::string& cgroup) {
    return facts_of({{"files", {{"/proc/self/cgroup", cgroup}}}}).self.container.runtime;
  };
  EXPECT_EQ(runtime("0::/system.slice/docker-" + id + ".scope\n"), "docker");
  EXPECT_EQ(runtime("12:devices:/docker/" + id + "\n"), "docker");
  EXPECT_EQ(runtime("0::/kubepods.slice/kubepods-pod0f3c6d1e_8a4b_4c5d_9e6f_7a8b9c0d1e2f.slice/"
                    "cri-containerd-" +
                    id + ".scope\n"),
            "containerd");
  EXPECT_EQ(
      runtime("0::/kubepods/besteffort/pod0f3c6d1e-8a4b-4c5d-9e6f-7a8b9c0d1e2f/crio-" + id + "\n"),
      "cri-o");
  EXPECT_EQ(runtime("0::/machine.slice/libpod-" + id + ".scope\n"), "podman");
  EXPECT_EQ(runtime("0::/user.slice\n"), "");
}

TEST(inspect_facts, cdi_document_problems_are_reported) {
  const auto problem = [](const std::string& text) {
    return facts_of({{"directories", {{"/etc/cdi", {"a.yaml"}}}},
                     {"files", {{"/etc/cdi/a.yaml", text}}},
                     {"statuses", {{"/dev/nvidia0", {{"type", "character device"}}}}}})
        .cdi.at(0)
        .problem;
  };
  const std::string head = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n";
  const auto device = [&](const std::string& edits) {
    return head + "devices:\n- name: gpu0\n  containerEdits:\n" + edits;
  };
  EXPECT_EQ(problem(device("    deviceNodes:\n    - path: /dev/nvidia0\n")), "");
  EXPECT_EQ(problem(device("    deviceNodes:\n    - path: /dev/nvidia1\n")),
            "it names /dev/nvidia1, which does not exist");
  EXPECT_EQ(problem(device("    deviceNodes:\n    - path: /dev/x\n      hostPath: /dev/nvidia0\n")),
            "");
  EXPECT_EQ(problem(device("    mounts:\n    - hostPath: /usr/lib/libcuda.so.1\n"
                           "      containerPath: /usr/lib/libcuda.so.1\n")),
            "it names /usr/lib/libcuda.so.1, which does not exist");
  EXPECT_EQ(problem(head), "line 1: a CDI document must have at least one device");
  const std::string known = "0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0, 1.1.0";
  const std::string devices =
      "devices: [{name: gpu0, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}]\n";
  EXPECT_EQ(problem("kind: nvidia.com/gpu\n" + devices),
            "line 1: cdiVersion is missing; use one of " + known);
  EXPECT_EQ(problem("kind: nvidia.com/gpu\ncdiVersion: 9.9.9\n" + devices),
            "line 2: unknown cdiVersion \"9.9.9\"; use one of " + known);
  EXPECT_EQ(problem("cdiVersion: 0.5.0\nkind: gpu\n" + devices),
            "line 2: kind must be \"vendor/class\", not \"gpu\"");
  EXPECT_EQ(problem("- 1\n- 2\n"),
            "line 1: a CDI document must be a mapping with cdiVersion, kind and devices");
  EXPECT_THAT(problem("a: [1,"), HasSubstr("not valid YAML or JSON: "));
  EXPECT_THAT(problem(head + "devices:\n- {}\n"), HasSubstr(" (and 1 more)"));
  EXPECT_EQ(problem(head + "devices:\n- 7\n"),
            "line 4: a device must be a mapping, not a number (\"7\")");
}

TEST(inspect_facts, cdi_conflicts_in_one_directory_are_reported) {
  const std::string text =
      "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"
      "devices: [{name: gpu0, containerEdits: {env: [A=b]}}]\n";
  const auto facts =
      facts_of(
          {{"directories", {{"/etc/cdi", {"a.yaml", "b.json"}}, {"/var/run/cdi", {"c.yaml"}}}},
           {"files",
            {{"/etc/cdi/a.yaml", text}, {"/etc/cdi/b.json", text}, {"/var/run/cdi/c.yaml", text}}}})
          .cdi;
  ASSERT_THAT(facts, ::testing::SizeIs(3));
  EXPECT_EQ(facts[0].problem,
            "nvidia.com/gpu=gpu0 is also in /etc/cdi/b.json, and engines use neither");
  EXPECT_EQ(facts[1].problem,
            "nvidia.com/gpu=gpu0 is also in /etc/cdi/a.yaml, and engines use neither");
  EXPECT_EQ(facts[2].problem, "");
}

TEST(inspect_recording, invalid_recording_is_rejected) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      static_cast<void>(recorded_machine::parse("FILE", text));
      return "accepted";
    } catch (const gpushm::error& failure) {
      EXPECT_EQ(failure.code(), gpushm::errc::invalid_argument);
      return std::string(failure.cause());
    }
  };
  EXPECT_EQ(refusal("{"), "it is not JSON");
  EXPECT_EQ(refusal("[]"), "it is JSON, but array instead of an object");
  EXPECT_EQ(refusal("7"), "it is JSON, but number instead of an object");
  EXPECT_EQ(refusal("{}"), "it contains no recording");
  EXPECT_EQ(refusal(R"({"recording":7})"), "it contains no recording");
  EXPECT_EQ(refusal(R"({"format":2,"answers":{}})"),
            "its format is 2, this program reads format 1");
  EXPECT_EQ(refusal(R"({"format":1,"answers":{"files":[]}})"), "\"files\" is not an object");
  EXPECT_EQ(refusal(R"({"format":1,"answers":{"files":{"/a":7}}})"),
            "\"files\" has a malformed value for /a");
  EXPECT_EQ(refusal(R"({"format":1,"answers":{"statuses":{"/a":{}}}})"),
            "\"statuses\" has a malformed value for /a");
  EXPECT_THAT(refusal(R"({"format":1,"answers":{},"driver":{"cuda":{"gpus":7}}})"),
              HasSubstr("\"driver\" is malformed: "));
  EXPECT_EQ(refusal(R"({"format":1,"answers":{}})"), "accepted");
}

TEST(inspect_predict, agrees_with_measurements) {
  const auto party_of = [](int pid, std::vector<int> minors) {
    party made;
    made.pid = pid;
    made.known_minors = true;
    made.minors = std::move(minors);
    return made;
  };
  const party one = party_of(1, {0});
  const party also_one = party_of(1, {0, 1});
  const party other = party_of(8, {0});
  const party elsewhere = party_of(8, {1});
  const party elsewhere_one = party_of(1, {1});
  const auto failure = [](way sharing_way, const party& source, const party& target) {
    const prediction made = predict(sharing_way, source, target, 0);
    EXPECT_EQ(made.works, made.failure.empty());
    EXPECT_NE(made.why, "");
    EXPECT_EQ(made.works, made.remedy.empty());
    return made.failure;
  };
  // Raw handles: equal PIDs collide, different PIDs do not. Through gpushm no PIDs collide.
  EXPECT_EQ(failure(way::raw_legacy, one, also_one), "CUDA_ERROR_INVALID_CONTEXT (201)");
  EXPECT_EQ(failure(way::raw_legacy, one, other), "");
  for (const way how : {way::legacy, way::vmm, way::pool, way::host}) {
    EXPECT_EQ(failure(how, one, also_one), "") << to_string(how);
    EXPECT_EQ(failure(how, one, other), "") << to_string(how);
  }
  // A hidden GPU, and the driver's error without gpushm.
  EXPECT_EQ(failure(way::raw_legacy, one, elsewhere), "CUDA_ERROR_INVALID_VALUE (1)");
  EXPECT_EQ(failure(way::raw_legacy, one, elsewhere_one), "CUDA_ERROR_INVALID_CONTEXT (201)");
  for (const way how : {way::legacy, way::vmm, way::pool}) {
    EXPECT_EQ(failure(how, one, elsewhere), "device_not_visible") << to_string(how);
  }
  EXPECT_EQ(predict(way::vmm, one, elsewhere, 0).driver_failure, "CUDA_ERROR_INVALID_DEVICE (101)");
  EXPECT_EQ(predict(way::pool, one, elsewhere, 0).driver_failure,
            "killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(failure(way::host, one, elsewhere), "");
  // Nothing to export.
  EXPECT_EQ(failure(way::vmm, elsewhere, one), "device_not_found");
  EXPECT_EQ(failure(way::vmm, party_of(3, {}), one), "driver_unavailable");
  EXPECT_EQ(failure(way::raw_legacy, one, party_of(3, {})), "CUDA_ERROR_NO_DEVICE (100)");
}

TEST(inspect_compare, covers_both_directions_of_each_gpu) {
  facts facts = recorded_facts("container-one-of-two");
  facts.peer = facts.self;
  facts.peer->pid = 99;
  facts.peer->nspid = {99};
  facts.peer_minors = std::vector<int>{1};
  const auto predictions = compare_with_peer(facts);
  // Host memory, and two GPUs, each of which one of the sides may open.
  EXPECT_EQ(predictions.size(), 2U + 2U * 2U * 4U);
  for (const peer_prediction& each : predictions) {
    EXPECT_EQ(each.expected.works, each.how == way::host) << to_string(each.how);
  }
  facts.peer_minors = std::vector<int>{0};
  for (const peer_prediction& each : compare_with_peer(facts)) {
    EXPECT_TRUE(each.expected.works) << to_string(each.how) << " " << each.expected.failure;
  }
  facts.peer.reset();
  EXPECT_THAT(compare_with_peer(facts), IsEmpty());
}

}  // namespace
}  // namespace gpushm_tests
