// SPDX-License-Identifier: Apache-2.0
// Machines without NVIDIA's usual driver, SELinux, processes that hold GPUs, and the remedies of
// CDI documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpushm/error.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/facts/recording.hpp"
#include "tests/support/machines/machines.hpp"

namespace gpushm_tests {
namespace {

using namespace gpushm::inspect;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

facts gathered(const json& answers, const driver_view& driver = {}) {
  const auto machine =
      recorded_machine::parse("test", json{{"format", 1}, {"answers", answers}}.dump());
  return gather(*machine.files, [&] { return driver; });
}

check check_of(const facts& gathered, const std::string& id) {
  for (check& each : examine(gathered)) {
    if (each.id == id) {
      return each;
    }
  }
  throw std::runtime_error("no check " + id);
}

/// A driver that lists one GPU.
driver_view one_gpu() {
  driver_view driver;
  driver.cuda.library = "/usr/lib/wsl/lib/libcuda.so.1";
  driver.cuda.result = 0;
  driver.cuda.version = 12040;
  cuda_gpu_view& gpu = driver.cuda.gpus.emplace_back();
  gpu.uuid = "GPU-00000001-0000-0000-0000-000000000000";
  gpu.pci_address = "0000:01:00.0";
  return driver;
}

const json wsl2{{"files", {{"/proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n"}}},
                {"statuses", {{"/dev/dxg", {{"type", "character device"}}}}}};

const json tegra{{"files",
                  {{"/proc/sys/kernel/osrelease", "5.15.136-tegra\n"},
                   {"/proc/device-tree/compatible",
                    std::string("nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0", 46)},
                   {"/proc/device-tree/model", std::string("NVIDIA Jetson AGX Orin\0", 23)}}},
                 // The display's driver creates these two.
                 {"statuses",
                  {{"/dev/nvidiactl", {{"type", "character device"}}},
                   {"/dev/nvidia0", {{"type", "character device"}}}}},
                 {"directories", {{"/dev", {"nvidia0", "nvidiactl", "nvmap"}}}},
                 {"open_errors", {{"/dev/nvidiactl", 0}, {"/dev/nvidia0", 0}}}};

/// Advice that harms or cannot work on a machine without the usual driver.
void expect_no_harmful_advice(const facts& gathered) {
  for (const check& each : examine(gathered)) {
    for (const char* part : {"modprobe",
                             "--device nvidia.com/gpu",
                             "libcuda1",
                             "libnvidia-ml1",
                             "NVreg_",
                             "nvidia-persistenced",
                             "--gpu-reset",
                             "chmod"}) {
      EXPECT_THAT(each.remedy, Not(HasSubstr(part))) << each.id;
    }
  }
}

TEST(platform, wsl2_is_named_and_gets_no_harmful_advice) {
  const facts with_gpu = gathered(wsl2, one_gpu());
  EXPECT_EQ(with_gpu.platform, "wsl2");
  const check named = check_of(with_gpu, "platform");
  EXPECT_EQ(named.result, verdict::note);
  EXPECT_THAT(named.seen, StartsWith("this is WSL2"));
  EXPECT_THAT(named.why, AllOf(HasSubstr("host memory work"), HasSubstr("no /dev/nvidia*")));
  EXPECT_EQ(check_of(with_gpu, "device-nodes").result, verdict::note);
  EXPECT_EQ(check_of(with_gpu, "device-nodes").follows, "platform");
  expect_no_harmful_advice(with_gpu);

  driver_view broken = one_gpu();
  broken.cuda.gpus.clear();
  broken.cuda.result = 100;
  broken.cuda.problem = "cuInit: CUDA_ERROR_NO_DEVICE (100)";
  const facts without = gathered(wsl2, broken);
  expect_no_harmful_advice(without);
  EXPECT_THAT(check_of(without, "cuinit").remedy, HasSubstr("update the driver in Windows"));
  EXPECT_THAT(check_of(without, "platform").remedy, HasSubstr("never install a driver in WSL2"));
  // In a container without /dev/dxg the kernel's name remains.
  EXPECT_EQ(gathered({{"files", wsl2["files"]}}).platform, "wsl2");
}

TEST(platform, tegra_is_named_and_gets_no_harmful_advice) {
  const facts facts_here = gathered(tegra, one_gpu());
  EXPECT_EQ(facts_here.platform, "tegra");
  const check named = check_of(facts_here, "platform");
  EXPECT_EQ(named.result, verdict::note);
  EXPECT_THAT(named.seen, StartsWith("this is Tegra (NVIDIA Jetson AGX Orin)"));
  EXPECT_THAT(named.remedy, HasSubstr("--runtime nvidia"));
  EXPECT_EQ(check_of(facts_here, "device-nodes").follows, "platform");
  expect_no_harmful_advice(facts_here);
  // Containers do not see the device tree.
  EXPECT_EQ(gathered({{"statuses", {{"/dev/nvmap", {{"type", "character device"}}}}}}).platform,
            "tegra");
}

TEST(platform, tegra_with_the_usual_driver_is_a_usual_machine) {
  json with_uvm = tegra;
  with_uvm["files"]["/proc/devices"] = "Character devices:\n195 nvidia\n511 nvidia-uvm\n";
  EXPECT_EQ(gathered(with_uvm).platform, "");
  EXPECT_EQ(gathered(json::object()).platform, "");
  EXPECT_EQ(recorded_facts("dgx-h100").platform, "");
  EXPECT_EQ(check_of(recorded_facts("dgx-h100"), "platform").result, verdict::ok);
}

// ---- SELinux ----

json selinux_answers(const std::string& type, const char* enforce, const char* allowed) {
  json answers{{"files",
                {{"/proc/self/attr/current", "system_u:system_r:" + type + ":s0:c1,c2" + '\0'},
                 {"/proc/self/status", "Pid:\t7\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n"}}},
               {"directories",
                {{"/dev", {"nvidia0", "nvidiactl", "nvidia-uvm"}}, {"/run/gpushm/d", {"default"}}}},
               {"labels", {{"/run/gpushm/d/default/socket", "system_u:object_r:var_run_t:s0"}}}};
  if (enforce != nullptr) {
    answers["files"]["/sys/fs/selinux/enforce"] = enforce;
  }
  if (allowed != nullptr) {
    answers["files"]["/sys/fs/selinux/booleans/container_use_devices"] = allowed;
  }
  for (const char* node : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    answers["statuses"][node] = {{"type", "character device"}, {"mode", 0666}};
    answers["open_errors"][node] = 0;
    answers["labels"][node] = "system_u:object_r:xserver_misc_device_t:s0";
  }
  return answers;
}

json with_denied_nodes(json answers) {
  for (auto& [node, error] : answers["open_errors"].items()) {
    error = EACCES;
  }
  return answers;
}

TEST(selinux, facts_are_read) {
  const facts facts_here = gathered(selinux_answers("container_t", "1", "0 0\n"));
  EXPECT_TRUE(facts_here.selinux.present);
  EXPECT_EQ(facts_here.selinux.enforcing, true);
  EXPECT_EQ(facts_here.selinux.context, "system_u:system_r:container_t:s0:c1,c2");
  EXPECT_EQ(facts_here.selinux.container_use_devices, false);
  EXPECT_EQ(facts_here.selinux.labels.at("/dev/nvidia0"),
            "system_u:object_r:xserver_misc_device_t:s0");
  EXPECT_EQ(facts_here.selinux.labels.at("/run/gpushm/d/default/socket"),
            "system_u:object_r:var_run_t:s0");
  json either = selinux_answers("container_t", "1", "0 0\n");
  either["files"]["/sys/fs/selinux/booleans/container_use_xserver_devices"] = "1 1";
  EXPECT_EQ(gathered(either).selinux.container_use_devices, true);
  for (const char* other :
       {"unconfined\n", "docker-default (enforce)\n", "a:b:c (enforce)\n", ""}) {
    EXPECT_FALSE(gathered({{"files", {{"/proc/self/attr/current", other}}}}).selinux.present)
        << other;
  }
}

TEST(selinux, denied_node_is_its_problem_and_not_the_mode) {
  for (const char* enforce : {"1", static_cast<const char*>(nullptr)}) {
    const facts facts_here =
        gathered(with_denied_nodes(selinux_answers("container_t", enforce, nullptr)), one_gpu());
    const check made = check_of(facts_here, "selinux");
    EXPECT_EQ(made.result, verdict::problem);
    EXPECT_THAT(made.seen,
                HasSubstr("this process is container_t; it may not use /dev/nvidia-uvm "
                          "(xserver_misc_device_t)"));
    EXPECT_THAT(made.why, HasSubstr("ausearch -m avc"));
    EXPECT_THAT(made.remedy,
                AllOf(HasSubstr("setsebool -P container_use_devices=on"),
                      HasSubstr("--security-opt label=disable")));
    EXPECT_EQ(check_of(facts_here, "device-nodes").follows, "selinux");
    for (const check& each : examine(facts_here)) {
      EXPECT_THAT(each.remedy, Not(HasSubstr("chmod"))) << each.id;
    }
  }
}

TEST(selinux, mode_that_denies_is_not_selinux) {
  json answers = with_denied_nodes(selinux_answers("container_t", "1", "1 1"));
  for (auto& [node, status] : answers["statuses"].items()) {
    status["mode"] = 0660;
  }
  facts facts_here = gathered(answers, one_gpu());
  facts_here.self.container.runtime = "podman";
  EXPECT_EQ(check_of(facts_here, "selinux").result, verdict::ok);
  EXPECT_THAT(check_of(facts_here, "device-nodes").remedy, HasSubstr("chmod 0666"));
}

TEST(selinux, denied_socket_is_its_problem) {
  facts facts_here = gathered(selinux_answers("container_t", "1", "1 1"), one_gpu());
  facts_here.self.container.runtime = "podman";
  facts_here.broker = {"/run/gpushm/d/default/socket",
                       false,
                       "",
                       0,
                       0,
                       "",
                       "connect \"/run/gpushm/d/default/socket\": Permission denied (EACCES)"};
  const check made = check_of(facts_here, "selinux");
  EXPECT_EQ(made.result, verdict::problem);
  EXPECT_THAT(made.seen, HasSubstr("may not connect to /run/gpushm/d/default/socket (var_run_t)"));
  EXPECT_THAT(made.remedy, HasSubstr("chcon -Rt container_file_t /run/gpushm/d"));
  EXPECT_EQ(check_of(facts_here, "broker").follows, "selinux");
  // A broker that does not run is another problem than denied nodes.
  facts denied = gathered(with_denied_nodes(selinux_answers("container_t", "1", "0 0")), one_gpu());
  denied.broker = {"", false, "", 0, 0, "", "the socket does not exist"};
  EXPECT_EQ(check_of(denied, "device-nodes").follows, "selinux");
  EXPECT_EQ(check_of(denied, "broker").follows, "");
}

TEST(selinux, host_reports_what_its_containers_may_not_use) {
  const auto of_host = [](const char* allowed) {
    return check_of(gathered(selinux_answers("unconfined_t", "1", allowed), one_gpu()), "selinux");
  };
  const check off = of_host("0 0");
  EXPECT_EQ(off.result, verdict::note);
  EXPECT_THAT(off.seen, HasSubstr("container_use_devices is off"));
  EXPECT_THAT(off.remedy, HasSubstr("setsebool -P container_use_devices=on"));
  const check socket = of_host("1 1");
  EXPECT_EQ(socket.result, verdict::note);
  EXPECT_THAT(socket.seen, HasSubstr("/run/gpushm/d/default/socket is var_run_t"));
  json labelled = selinux_answers("unconfined_t", "1", "1 1");
  labelled["labels"]["/run/gpushm/d/default/socket"] = "system_u:object_r:container_file_t:s0";
  EXPECT_EQ(check_of(gathered(labelled), "selinux").result, verdict::ok);
}

TEST(selinux, permissive_denies_nothing) {
  const check made =
      check_of(gathered(with_denied_nodes(selinux_answers("container_t", "0", "0 0")), one_gpu()),
               "selinux");
  EXPECT_EQ(made.result, verdict::ok);
  EXPECT_EQ(made.seen, "permissive, this process is container_t");
}

// ---- Xids ----

/// The Xid that is fatal for memory is the one to report, whichever is last.
TEST(xids, of_memory_name_the_end_of_its_segments) {
  facts gathered = recorded_facts("dgx-h100");
  gathered.xids = {{"0000:1b:00.0", 95, "NVRM: Xid (PCI:0000:1b:00): 95, Uncontained"},
                   {"0000:1b:00.0", 62, "NVRM: Xid (PCI:0000:1b:00): 62, halt"}};
  EXPECT_THAT(check_of(gathered, "xid").seen, HasSubstr(": 95, Uncontained"));
  EXPECT_THAT(check_of(gathered, "xid").why, HasSubstr("gpushm lost-gpu --xid 95"));
  gathered.xids.erase(gathered.xids.begin());
  EXPECT_THAT(check_of(gathered, "xid").why, HasSubstr("a reset loses its memory contents"));
}

// ---- processes that hold GPUs ----

TEST(holders, are_listed_where_a_reset_is_advised) {
  facts gathered = recorded_facts("dgx-h100");
  gathered.xids = {{"0000:1b:00.0", 79, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off"}};
  EXPECT_THAT(check_of(gathered, "xid").remedy, HasSubstr("fuser -v /dev/nvidia*"));
  gathered.holders = {{812, "nvidia-persiste", {"/dev/nvidia0"}},
                      {4711, "gpushmd", {"/dev/nvidiactl"}},
                      {1, "a", {}},
                      {2, "b", {}},
                      {3, "c", {}}};
  const std::string remedy = check_of(gathered, "xid").remedy;
  EXPECT_THAT(remedy,
              AllOf(HasSubstr("stop the processes that have GPUs open: nvidia-persiste (PID 812), "
                              "gpushmd (PID 4711), a (PID 1), b (PID 2) and 1 more"),
                    HasSubstr("systemctl stop nvidia-persistenced"),
                    HasSubstr("gpushm.dev/agent=off nvidia.com/gpu.deploy.operands=false"),
                    HasSubstr("then nvidia-smi --gpu-reset")));
  gathered.gpus[1].nvml->mig_pending = true;
  EXPECT_THAT(check_of(gathered, "mig").remedy, HasSubstr("gpushmd (PID 4711)"));
  facts mismatch = recorded_facts("driver-mismatch");
  mismatch.holders = {{9, "python3", {"/dev/nvidia0"}}};
  const std::string reload = check_of(mismatch, "driver-match").remedy;
  EXPECT_THAT(reload, AllOf(HasSubstr("python3 (PID 9)"), Not(HasSubstr("persistenced"))));
}

TEST(holders, are_recorded_and_replayed) {
  const facts facts_here =
      gathered({{"holders",
                 {{"99", {{"name", "python3"}, {"nodes", {"/dev/nvidia0", "/dev/nvidiactl"}}}}}}});
  EXPECT_THAT(facts_here.holders,
              ElementsAre(node_holder{99, "python3", {"/dev/nvidia0", "/dev/nvidiactl"}}));
  EXPECT_THROW(static_cast<void>(gathered({{"holders", {{"99", {{"nodes", "x"}}}}}})),
               gpushm::error);
  EXPECT_THAT(gathered(json::object()).holders, IsEmpty());
}

// ---- CDI documents ----

struct document_case {
  const char* path;
  const char* kind;
  std::vector<const char*> remedy;
};

TEST(cdi_remedy, names_the_writer_of_each_kind) {
  const document_case cases[] = {
      {"/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json",
       "k8s.device-plugin.nvidia.com/gpu",
       {"restart the pod of NVIDIA's device plugin"}},
      {"/var/run/cdi/k8s.gpu.nvidia.com-claim_1.yaml",
       "k8s.gpu.nvidia.com/claim",
       {"NVIDIA's DRA driver"}},
      {"/var/run/cdi/k8s.compute-domain.nvidia.com-x.yaml",
       "k8s.compute-domain.nvidia.com/channel",
       {"NVIDIA's DRA driver"}},
      {"/var/run/cdi/management.nvidia.com-gpu.yaml",
       "management.nvidia.com/gpu",
       {"NVIDIA's container toolkit"}},
      {"/var/run/cdi/runtime.json", "runtime.nvidia.com/gpu", {"NVIDIA's container toolkit"}},
      {"/var/run/cdi/nvidia.yaml",
       "nvidia.com/gpu",
       {"systemctl restart nvidia-cdi-refresh",
        "gpushm cdi generate --output=/var/run/cdi/nvidia"}},
      {"/var/run/cdi/nvidia.com-gpu.yaml",
       "nvidia.com/gpu",
       {"systemctl restart gpushm-cdi-refresh"}},
      {"/var/run/cdi/mine.yaml",
       "nvidia.com/gpu",
       {"gpushm cdi generate --output=/var/run/cdi/mi"}},
      {"/var/run/cdi/gpushm-device-plugin.json",
       "k8s.device-plugin.gpushm.dev/gpu",
       {"restart the node's agent"}},
      {"/etc/cdi/gpushm.dev-ipc.yaml",
       "gpushm.dev/ipc",
       {"gpushm cdi ipc --output=/etc/cdi/gpushm.dev-ipc.yaml"}}};
  for (const document_case& each : cases) {
    facts gathered = recorded_facts("dgx-h100");
    gathered.cdi = {
        {each.path, each.kind, "0.5.0", {"0"}, "it names /dev/nvidia9, which does not exist"}};
    const check made = check_of(gathered, "cdi");
    EXPECT_EQ(made.result, verdict::warning) << each.path;
    EXPECT_THAT(made.why, HasSubstr("unresolvable CDI devices")) << each.path;
    EXPECT_THAT(made.remedy, Not(HasSubstr("nvidia-ctk"))) << each.path;
    for (const char* part : each.remedy) {
      EXPECT_THAT(made.remedy, HasSubstr(part)) << each.path;
    }
  }
}

TEST(cdi_remedy, superseded_document_is_deleted) {
  facts gathered = recorded_facts("dgx-h100");
  gathered.cdi = {
      {"/etc/cdi/nvidia.yaml", "nvidia.com/gpu", "0.5.0", {"0"}, "it names /dev/nvidia9"},
      {"/var/run/cdi/nvidia.yaml", "nvidia.com/gpu", "0.5.0", {"0"}, ""}};
  EXPECT_THAT(
      check_of(gathered, "cdi").remedy,
      StartsWith("rm /etc/cdi/nvidia.yaml: /var/run/cdi/nvidia.yaml defines these devices"));
  gathered.cdi[1].problem = "it is stale";
  EXPECT_THAT(check_of(gathered, "cdi").remedy,
              StartsWith("gpushm cdi generate --output=/etc/cdi/nvidia.yaml"));
}

TEST(cdi_remedy, other_vendors_are_foreign) {
  for (const char* kind : {"intel.com/gpu", "notnvidia.com/gpu", "nvidia.com.example.org/gpu"}) {
    facts gathered = recorded_facts("dgx-h100");
    gathered.cdi = {{"/etc/cdi/x.yaml", kind, "0.5.0", {"0"}, "it is stale"}};
    EXPECT_EQ(check_of(gathered, "cdi").result, verdict::note) << kind;
  }
}

/// A machine with GPUs of AMD and Intel and none of NVIDIA, as sysfs and /dev have them.
facts machine_of_others() {
  const auto node = [](int minor) -> json {
    return {{"type", "character device"},
            {"mode", 0666},
            {"uid", 0},
            {"gid", 109},
            {"major", 226},
            {"minor", minor}};
  };
  return gathered({{"directories", {{"/sys/class/drm", {"renderD128", "renderD129"}}}},
                   {"files",
                    {{"/sys/class/drm/renderD128/device/vendor", "0x1002\n"},
                     {"/sys/class/drm/renderD129/device/vendor", "0x8086\n"}}},
                   {"links",
                    {{"/sys/class/drm/renderD128/device", "../../../0000:03:00.0"},
                     {"/sys/class/drm/renderD129/device", "../../../0000:00:02.0"}}},
                   {"statuses",
                    {{"/dev/dri/renderD128", node(128)},
                     {"/dev/dri/renderD129", node(129)},
                     {"/dev/kfd", node(0)}}}});
}

TEST(cdi_remedy, documents_of_amd_and_intel_have_their_own_advice) {
  struct other_case {
    const char* path;
    const char* kind;
    const char* remedy;
  };
  const other_case cases[] = {
      {"/var/run/cdi/amd.com-gpu.yaml",
       "amd.com/gpu",
       "gpushm cdi refresh --vendor amd   (with --watch it follows changes); then: gpushm cdi "
       "validate /var/run/cdi/amd.com-gpu.yaml"},
      {"/etc/cdi/amd.json",
       "amd.com/gpu",
       "gpushm cdi generate --vendor amd --output=/etc/cdi/amd.json   (or amd-ctk cdi generate, if "
       "that wrote it); then: gpushm cdi validate /etc/cdi/amd.json"},
      {"/etc/cdi/amd.json",
       "",
       "gpushm cdi generate --vendor amd --output=/etc/cdi/amd.json   (or amd-ctk cdi generate, if "
       "that wrote it); then: gpushm cdi validate /etc/cdi/amd.json"},
      {"/var/run/cdi/intel.com-gpu.yaml",
       "intel.com/gpu",
       "gpushm cdi refresh --vendor intel   (with --watch it follows changes); then: gpushm cdi "
       "validate /var/run/cdi/intel.com-gpu.yaml"},
      {"/etc/cdi/intel.com-gpu.yaml",
       "intel.com/gpu",
       "gpushm cdi generate --vendor intel --output=/etc/cdi/intel.com-gpu.yaml   (or "
       "intel-cdi-specs-generator gpu, if that wrote it); then: gpushm cdi validate "
       "/etc/cdi/intel.com-gpu.yaml"},
      {"/etc/cdi/intel.com-mei.yaml",
       "intel.com/gpu-mei",
       "write it again with Intel's program that wrote it (container toolkit, device plugin or DRA "
       "driver); gpushm describes intel.com/gpu only"},
      {"/var/run/cdi/claim.json",
       "k8s.gpu.amd.com/claim",
       "write it again with AMD's program that wrote it (container toolkit, device plugin or DRA "
       "driver); gpushm describes amd.com/gpu only"}};
  for (const other_case& each : cases) {
    facts gathered = machine_of_others();
    ASSERT_EQ(gathered.other_gpus.size(), 3U);
    gathered.cdi = {{each.path, each.kind, "0.5.0", {"0"}, "it names /dev/dri/card9"}};
    const check made = check_of(gathered, "cdi");
    EXPECT_EQ(made.result, verdict::warning) << each.path;
    EXPECT_THAT(made.why, HasSubstr("unresolvable CDI devices")) << each.path;
    EXPECT_EQ(made.remedy, each.remedy);
    gathered.other_gpus.clear();
    const check elsewhere = check_of(gathered, "cdi");
    EXPECT_EQ(elsewhere.result, verdict::note) << "no GPU of that maker is here: " << each.path;
    EXPECT_THAT(elsewhere.remedy, EndsWith(each.remedy));
    const bool describes_gpus = std::string(each.remedy).starts_with("gpushm");
    EXPECT_EQ(elsewhere.remedy.starts_with(std::string("rm ") + each.path), describes_gpus);
  }
}

TEST(cdi_remedy, superseded_document_of_another_maker_is_deleted) {
  for (const std::string maker : {"amd", "intel"}) {
    facts gathered = machine_of_others();
    const std::string kind = maker + ".com/gpu";
    const std::string good = "/var/run/cdi/" + maker + ".com-gpu.yaml";
    gathered.cdi = {{"/etc/cdi/old.json", kind, "0.6.0", {"0"}, "it names /dev/dri/card9"},
                    {good, kind, "0.5.0", {"0"}, ""}};
    EXPECT_EQ(check_of(gathered, "cdi").remedy,
              "rm /etc/cdi/old.json: " + good + " defines these devices");
  }
}

TEST(cdi_remedy, documents_of_gpus_that_are_here_come_first) {
  facts gathered = machine_of_others();
  for (auto& node : gathered.other_gpus) {
    node.open_error = 0;
  }
  gathered.cdi = {{"/etc/cdi/x.yaml", "example.org/gpu", "0.5.0", {"0"}, "it is stale"},
                  {"/etc/cdi/amd.json", "amd.com/gpu", "0.5.0", {"0"}, "it is stale"},
                  {"/etc/cdi/nvidia.yaml", "nvidia.com/gpu", "0.5.0", {"0"}, "it is stale"}};
  EXPECT_THAT(check_of(gathered, "cdi").seen, StartsWith("/etc/cdi/nvidia.yaml"));
  gathered.cdi.pop_back();
  EXPECT_THAT(check_of(gathered, "cdi").seen, StartsWith("/etc/cdi/amd.json"));
  // What cannot be used is not doubled by a second document.
  EXPECT_THAT(check_of(gathered, "other-gpus").remedy,
              StartsWith("gpushm cdi generate --vendor amd --output=/etc/cdi/amd.json"));
}

TEST(cdi_remedy, document_that_cannot_be_read_is_judged_by_its_name) {
  facts gathered = recorded_facts("dgx-h100");
  gathered.cdi = {{"/var/run/cdi/nvidia.yaml", "", "", {}, "it is not YAML"}};
  EXPECT_THAT(check_of(gathered, "cdi").remedy, HasSubstr("restart nvidia-cdi-refresh"));
  gathered.cdi[0].path = "/etc/cdi/other.yaml";
  EXPECT_EQ(check_of(gathered, "cdi").remedy,
            "correct it, or write it again with the program that wrote it");
}

}  // namespace
}  // namespace gpushm_tests
