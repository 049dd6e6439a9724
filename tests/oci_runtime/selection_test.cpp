// SPDX-License-Identifier: Apache-2.0
// The devices that a request selects from documents, and their files.
#include "apps/gpushm-oci-runtime/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "apps/gpushm-oci-runtime/capabilities.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::oci_runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* gpus = R"({"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[
{"name":"0","containerEdits":{"env":["GPU=0"]}},
{"name":"1","containerEdits":{"env":["GPU=1"]}},
{"name":"1:0","containerEdits":{"env":["GPU=1:0"]}},
{"name":"gpu5","containerEdits":{"env":["GPU=5"]}},
{"name":"mig5:2","containerEdits":{"env":["GPU=5:2"]}},
{"name":"GPU-aaaa-1","containerEdits":{"env":["GPU=0"]}},
{"name":"GPU-aabb-2","containerEdits":{"env":["GPU=1"]}},
{"name":"MIG-cc","containerEdits":{"env":["GPU=1:0"]}}],
"containerEdits":{"env":["DRIVER=1"],
"mounts":[{"hostPath":"/x","containerPath":"/usr/lib/libcuda.so.1"},
{"hostPath":"/x","containerPath":"/usr/lib/libnvidia-ml.so.550.54"},
{"hostPath":"/x","containerPath":"/usr/lib/libGLX_nvidia.so.550.54"},
{"hostPath":"/x","containerPath":"/usr/lib/libnvcuvid.so.1"},
{"hostPath":"/x","containerPath":"/usr/lib/i386-linux-gnu/libcuda.so.550"},
{"hostPath":"/x","containerPath":"/usr/lib/libnvidia-future.so.1"},
{"hostPath":"/x","containerPath":"/usr/bin/nvidia-smi"}],
"deviceNodes":[{"path":"/dev/nvidiactl"},{"path":"/dev/nvidia-uvm"},{"path":"/dev/nvidia-modeset"},
{"path":"/dev/dri/card1"}]}})";
constexpr const char* other = R"({"cdiVersion":"0.5.0","kind":"v.com/nic","devices":[
{"name":"x","containerEdits":{"env":["NIC=x"],"mounts":[{"hostPath":"/x","containerPath":"/libGLX_nvidia.so"}]}}]})";

class oci_runtime_selection : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_ / "gpus.json") << gpus;
    std::ofstream(directory_ / "other.json") << other;
  }
  [[nodiscard]] std::vector<selected> select(const std::vector<std::string>& names,
                                             std::optional<std::string> capabilities = {}) const {
    request asked;
    for (const std::string& name : names) {
      asked.devices.push_back({name, "because " + name});
    }
    asked.capabilities = std::move(capabilities);
    return select_devices(cdi::registry({directory_.path()}), asked, chosen_);
  }
  [[nodiscard]] std::vector<std::string> devices(const std::vector<std::string>& names) const {
    std::vector<std::string> all;
    for (const selected& each : select(names)) {
      all.push_back(each.given.device);
    }
    return all;
  }
  /// The files of the driver that a container with these capabilities gets.
  [[nodiscard]] std::vector<std::string> files(const std::vector<std::string>& names,
                                               std::optional<std::string> capabilities) const {
    std::vector<std::string> result;
    for (const selected& each : select(names, std::move(capabilities))) {
      for (const cdi::mount& file : each.given.changes.mounts) {
        result.push_back(file.container_path.substr(file.container_path.rfind('/') + 1));
      }
      for (const cdi::device_node& node : each.given.changes.device_nodes) {
        result.push_back(node.path);
      }
    }
    return result;
  }
  [[nodiscard]] std::string problem_of(const std::vector<std::string>& names,
                                       std::optional<std::string> capabilities = {}) const {
    try {
      (void)select(names, std::move(capabilities));
    } catch (const error& failure) {
      return failure.what();
    }
    return "none";
  }

  gpushm_testing::temp_dir directory_;
  settings chosen_;
};

TEST_F(oci_runtime_selection, finds_devices_by_every_name) {
  const char* document = "nvidia.com/gpu";
  EXPECT_THAT(devices({"0"}), ElementsAre(document, "nvidia.com/gpu=0"));
  EXPECT_THAT(devices({"1:0"}), ElementsAre(document, "nvidia.com/gpu=1:0"));
  EXPECT_THAT(devices({"5"}), ElementsAre(document, "nvidia.com/gpu=gpu5"));
  EXPECT_THAT(devices({"5:2"}), ElementsAre(document, "nvidia.com/gpu=mig5:2"));
  EXPECT_THAT(devices({"GPU-aaaa-1"}), ElementsAre(document, "nvidia.com/gpu=GPU-aaaa-1"));
  EXPECT_THAT(devices({"GPU-aaaa"}), ElementsAre(document, "nvidia.com/gpu=GPU-aaaa-1"));
  EXPECT_THAT(devices({"GPU-AABB"}), ElementsAre(document, "nvidia.com/gpu=GPU-aabb-2"));
  EXPECT_THAT(devices({"MIG-c"}), ElementsAre(document, "nvidia.com/gpu=MIG-cc"));
  EXPECT_THAT(devices({"nvidia.com/gpu=1"}), ElementsAre(document, "nvidia.com/gpu=1"));
  EXPECT_THAT(devices({"v.com/nic=x", "0"}),
              ElementsAre("v.com/nic", "v.com/nic=x", document, "nvidia.com/gpu=0"));
}

TEST_F(oci_runtime_selection, each_device_and_document_is_selected_once) {
  EXPECT_THAT(devices({"0", "GPU-aaaa-1", "nvidia.com/gpu=0", "1"}),
              ElementsAre("nvidia.com/gpu", "nvidia.com/gpu=0", "nvidia.com/gpu=1"));
}

TEST_F(oci_runtime_selection, none_selects_only_the_driver) {
  EXPECT_THAT(devices({"none"}), ElementsAre("nvidia.com/gpu"));
}

TEST_F(oci_runtime_selection, all_selects_every_device_of_the_kind) {
  EXPECT_EQ(devices({"all"}).size(), 6U);  // eight names of five devices, and their document
  std::string with_all = gpus;
  with_all.insert(with_all.find("{\"name\":\"0\""),
                  R"({"name":"all","containerEdits":{"env":["GPU=all"]}},)");
  std::ofstream(directory_ / "gpus.json") << with_all;
  EXPECT_THAT(devices({"all"}), ElementsAre("nvidia.com/gpu", "nvidia.com/gpu=all"));
}

TEST_F(oci_runtime_selection, error_lists_all_missing_devices) {
  EXPECT_THAT(problem_of({"7", "0", "v.com/nic=y", "GPU-a"}),
              ::testing::AllOf(::testing::StartsWith("add devices \"7, v.com/nic=y, GPU-a\": "),
                               HasSubstr("\"gpushm cdi generate\" describes this machine's GPUs")));
  chosen_.default_kind = "none.org/gpu";
  for (const char* word : {"all", "none", "0"}) {
    EXPECT_THAT(problem_of({word}), HasSubstr(std::string("add devices \"") + word + "\": "));
  }
}

TEST_F(oci_runtime_selection, reason_names_the_request) {
  const auto all = select({"0", "1"});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].reason, "because 0");
  EXPECT_EQ(all[1].reason, "because 0");
  EXPECT_EQ(all[2].reason, "because 1");
}

TEST_F(oci_runtime_selection, adds_files_of_requested_capabilities) {
  EXPECT_THAT(files({"0"}, {}),
              ElementsAre("libcuda.so.1",
                          "libnvidia-ml.so.550.54",
                          "libnvidia-future.so.1",
                          "nvidia-smi",
                          "/dev/nvidiactl",
                          "/dev/nvidia-uvm"));
  EXPECT_THAT(
      files({"0"}, "utility"),
      ElementsAre(
          "libnvidia-ml.so.550.54", "libnvidia-future.so.1", "nvidia-smi", "/dev/nvidiactl"));
  EXPECT_THAT(files({"0"}, "graphics, video"),
              ElementsAre("libGLX_nvidia.so.550.54",
                          "libnvcuvid.so.1",
                          "libnvidia-future.so.1",
                          "/dev/nvidiactl",
                          "/dev/nvidia-modeset",
                          "/dev/dri/card1"));
  EXPECT_EQ(files({"0"}, "all").size(), 11U);
  EXPECT_THAT(files({"0"}, "compute,compat32"), ::testing::Contains("libcuda.so.550"));
}

TEST_F(oci_runtime_selection, qualified_name_gets_all_files) {
  EXPECT_EQ(files({"nvidia.com/gpu=0"}, "utility").size(), 11U);
  EXPECT_EQ(files({"1", "nvidia.com/gpu=0"}, "utility").size(), 11U);
  // The other document does not assign files to capabilities.
  EXPECT_THAT(files({"none", "v.com/nic=x"}, "utility"), ::testing::SizeIs(5));
  chosen_.filter_by_capabilities = false;
  EXPECT_EQ(files({"0"}, "utility").size(), 11U);
}

TEST_F(oci_runtime_selection, unknown_and_unsupported_capabilities_are_refused) {
  EXPECT_EQ(problem_of({"0"}, "compute,telepathy"),
            "read capabilities \"NVIDIA_DRIVER_CAPABILITIES\": \"telepathy\" is not a capability "
            "(use one of all, compat32, compute, display, graphics, ngx, utility, video)");
  chosen_.supported_capabilities = {"utility"};
  EXPECT_EQ(problem_of({"0"}, "compute"),
            "read capabilities \"NVIDIA_DRIVER_CAPABILITIES\": \"compute\" is not among "
            "supported_capabilities (use one of all, compat32, compute, display, graphics, ngx, "
            "utility, video)");
  EXPECT_THAT(files({"0"}, "all"), ::testing::Not(::testing::Contains("libcuda.so.1")));
  EXPECT_THAT(files({"0"}, {}), ::testing::Not(::testing::Contains("libcuda.so.1")));
}

}  // namespace
}  // namespace gpushm::oci_runtime
