// SPDX-License-Identifier: Apache-2.0
// GPUs of AMD and Intel in sysfs, as doctor sees them.
#include "inspect/facts/other_gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "inspect/facts/recording.hpp"

namespace gpushm_tests {
namespace {

using namespace gpushm::inspect;
using nlohmann::json;
using ::testing::IsEmpty;

std::vector<other_gpu_facts> gather(const json& answers) {
  const auto machine =
      recorded_machine::parse("test", json{{"format", 1}, {"answers", answers}}.dump());
  return gather_other_gpus(*machine.files);
}

json node(int group) {
  return {{"type", "character device"},
          {"mode", 0660},
          {"uid", 0},
          {"gid", group},
          {"major", 226},
          {"minor", 128}};
}

TEST(inspect_other_gpus, nodes_of_amd_and_intel_are_listed) {
  const auto facts = gather({{"directories",
                              {{"/sys/class/drm",
                                {"card0",
                                 "card0-HDMI-A-1",
                                 "card1",
                                 "renderD128",
                                 "renderD129",
                                 "renderD130",
                                 "version"}}}},
                             {"files",
                              {{"/sys/class/drm/card0/device/vendor", "0x8086\n"},
                               {"/sys/class/drm/renderD128/device/vendor", "0x8086\n"},
                               {"/sys/class/drm/card1/device/vendor", "0x10de\n"},
                               {"/sys/class/drm/renderD129/device/vendor", "0x10de\n"},
                               {"/sys/class/drm/version", "drm\n"}}},
                             {"links",
                              {{"/sys/class/drm/card0/device", "../../../0000:00:02.0"},
                               {"/sys/class/drm/renderD128/device", "../../../0000:00:02.0"},
                               {"/sys/class/drm/renderD130/device", "../../../amdgpu_xcp_1"}}},
                             {"statuses",
                              {{"/dev/dri/card0", node(44)},
                               {"/dev/dri/renderD128", node(109)},
                               {"/dev/kfd", node(109)}}},
                             {"open_errors", {{"/dev/dri/renderD128", EACCES}, {"/dev/kfd", 0}}}});
  ASSERT_EQ(facts.size(), 4U);
  EXPECT_EQ(facts[0].vendor, "intel");
  EXPECT_EQ(facts[0].device, "0000:00:02.0");
  EXPECT_EQ(facts[0].path, "/dev/dri/card0");
  EXPECT_EQ(facts[0].open_error, 0) << "cards are not opened";
  EXPECT_EQ(facts[1].path, "/dev/dri/renderD128");
  EXPECT_EQ(facts[1].open_error, EACCES);
  EXPECT_EQ(facts[1].status->gid, 109U);
  EXPECT_EQ(facts[2].vendor, "amd");
  EXPECT_EQ(facts[2].device, "amdgpu_xcp_1");
  EXPECT_FALSE(facts[2].status.has_value());
  EXPECT_EQ(facts[3].path, "/dev/kfd");
  EXPECT_EQ(facts[3].open_error, 0);
}

TEST(inspect_other_gpus, machine_with_other_devices_only_has_none) {
  EXPECT_THAT(gather(json::object()), IsEmpty());
  EXPECT_THAT(gather({{"directories", {{"/sys/class/drm", {"card0", "renderD", "card-1", "x"}}}},
                      {"files", {{"/sys/class/drm/card0/device/vendor", "\x01\x02 0x1002"}}}}),
              IsEmpty());
}

}  // namespace
}  // namespace gpushm_tests
