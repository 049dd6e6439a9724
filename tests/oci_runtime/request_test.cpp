// SPDX-License-Identifier: Apache-2.0
// The devices that a container requests.
#include "apps/gpushm-oci-runtime/request.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/gpushm-oci-runtime/provenance.hpp"
#include "gpushm/error.hpp"

namespace gpushm::oci_runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

cdi::oci_config with_variables(const std::vector<std::string>& lines) {
  cdi::oci_config config;
  config["process"]["env"] = lines;
  return config;
}

std::vector<std::string> names(const request& parsed) {
  std::vector<std::string> all;
  for (const requested_device& each : parsed.devices) {
    all.push_back(each.name);
  }
  return all;
}

settings accepting_variable() {
  settings chosen;
  chosen.accept_variable_unprivileged = true;
  return chosen;
}

std::vector<std::string> requested_by(const std::string& value,
                                      const settings& chosen = accepting_variable()) {
  return names(read_request(with_variables({"NVIDIA_VISIBLE_DEVICES=" + value}), chosen));
}

void mount(cdi::oci_config& config, const char* source, const char* destination) {
  config["mounts"].push_back({{"source", source}, {"destination", destination}});
}

TEST(oci_runtime_request, config_without_request_requests_nothing) {
  for (const char* config : {"{}",
                             R"({"process":{}})",
                             R"({"process":{"env":null}})",
                             R"({"process":{"env":["NVIDIA_VISIBLE_DEVICES"]}})",
                             R"({"process":{"env":["NVIDIA_VISIBLE_DEVICES_X=1",7]}})",
                             R"({"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=0"}})",
                             R"({"annotations":{"other/x":"nvidia.com/gpu=0"}})"}) {
    EXPECT_THAT(names(read_request(cdi::parse_config(config, "c"), {})), IsEmpty()) << config;
  }
}

TEST(oci_runtime_request, variable_lists_devices) {
  EXPECT_THAT(requested_by("0"), ElementsAre("0"));
  EXPECT_THAT(requested_by("0,1:0, GPU-abc ,,MIG-1,nvidia.com/gpu=x"),
              ElementsAre("0", "1:0", "GPU-abc", "MIG-1", "nvidia.com/gpu=x"));
  EXPECT_THAT(requested_by("all"), ElementsAre("all"));
  EXPECT_THAT(requested_by("0,all,1"), ElementsAre("all"));
  EXPECT_THAT(requested_by("none"), ElementsAre("none"));
  EXPECT_THAT(requested_by(""), IsEmpty());
  EXPECT_THAT(requested_by(" , "), IsEmpty());
  EXPECT_THAT(requested_by("void"), IsEmpty());
  EXPECT_THAT(requested_by("0,void"), IsEmpty());
  const auto last =
      read_request(with_variables({"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"}),
                   accepting_variable());
  EXPECT_THAT(last.devices, ElementsAre(requested_device{"1", "NVIDIA_VISIBLE_DEVICES=1"}));
}

// Images can set the variable and must not join a domain through it.
TEST(oci_runtime_request, variable_accepts_only_default_kind) {
  for (const char* name : {"gpushm.dev/share=b", "amd.com/gpu=0", "nvidia.com/pci=0"}) {
    for (const std::string& value : {std::string(name), std::string("0,").append(name)}) {
      try {
        (void)requested_by(value);
        FAIL() << value;
      } catch (const error& failure) {
        EXPECT_EQ(failure.what(),
                  std::string("read NVIDIA_VISIBLE_DEVICES \"") + name +
                      "\": it names a device of another kind than nvidia.com/gpu (request it from "
                      "the engine, for instance by --device)");
      }
    }
  }
  settings chosen = accepting_variable();
  chosen.default_kind = "amd.com/gpu";
  EXPECT_THAT(requested_by("amd.com/gpu=0", chosen), ElementsAre("amd.com/gpu=0"));
  EXPECT_THROW((void)requested_by("nvidia.com/gpu=0", chosen), error);
}

// Images can also set annotations: podman copies them.
TEST(oci_runtime_request, annotations_apply_only_if_operator_lists_prefixes) {
  cdi::oci_config config;
  config["annotations"] = {{"cdi.k8s.io/a", "gpushm.dev/share=a"},
                           {"cdi.k8s.io/b", "nvidia.com/gpu=0"},
                           {"io.container.manager", "cri-o"},
                           {"other/x", "nvidia.com/gpu=0"}};
  const auto off = read_request(config, {});
  EXPECT_THAT(off.devices, IsEmpty());
  EXPECT_THAT(off.ignored,
              ElementsAre("annotation cdi.k8s.io/a: annotation_prefixes is empty",
                          "annotation cdi.k8s.io/b: annotation_prefixes is empty"));
  // Also in a privileged container: a domain is not a device of the kernel.
  config["process"]["capabilities"]["bounding"] = {"CAP_SYS_ADMIN"};
  EXPECT_THAT(read_request(config, {}).devices, IsEmpty());
  settings chosen;
  chosen.annotation_prefixes = {"cdi.k8s.io/"};
  const auto on = read_request(config, chosen);
  EXPECT_THAT(names(on), ElementsAre("gpushm.dev/share=a", "nvidia.com/gpu=0"));
  EXPECT_THAT(on.ignored, IsEmpty());
}

// ---- provenance ----

TEST(oci_runtime_provenance, what_an_image_can_set_never_has_another_kind) {
  for (const source from : {source::annotation, source::mount, source::variable}) {
    for (const bool mounts : {false, true}) {
      for (const bool variable : {false, true}) {
        for (const bool annotations : {false, true}) {
          for (const bool privileged : {false, true}) {
            settings chosen;
            chosen.accept_mounts = mounts;
            chosen.accept_variable_unprivileged = variable;
            if (annotations) {
              chosen.annotation_prefixes = {"a/"};
            }
            const permission allowed = permitted(from, chosen, privileged);
            EXPECT_EQ(allowed.any_kind, set_by(from, chosen) == provenance::engine_user);
            EXPECT_EQ(allowed.accepted, allowed.why_not.empty());
          }
        }
      }
    }
  }
  EXPECT_EQ(set_by(source::annotation, {}), provenance::image);
  EXPECT_EQ(set_by(source::variable, {}), provenance::image);
  EXPECT_EQ(set_by(source::mount, {}), provenance::engine_user);
  EXPECT_FALSE(permitted(source::annotation, {}, true).accepted);
  EXPECT_FALSE(permitted(source::mount, {}, true).accepted);
  EXPECT_FALSE(permitted(source::variable, {}, false).accepted);
}

TEST(oci_runtime_request, variable_requires_privileged_container_or_setting) {
  const settings chosen;
  auto config = with_variables({"NVIDIA_VISIBLE_DEVICES=0"});
  config["process"]["capabilities"]["bounding"] = {"CAP_CHOWN"};
  const auto refused = read_request(config, chosen);
  EXPECT_THAT(refused.devices, IsEmpty());
  EXPECT_THAT(refused.ignored,
              ElementsAre("NVIDIA_VISIBLE_DEVICES=0: the container is not privileged, and "
                          "accept_variable_unprivileged is off"));
  config["process"]["capabilities"]["bounding"].push_back("CAP_SYS_ADMIN");
  EXPECT_THAT(names(read_request(config, chosen)), ElementsAre("0"));
  config["process"].erase("capabilities");
  EXPECT_THAT(names(read_request(config, chosen)), IsEmpty());
  EXPECT_THAT(names(read_request(config, accepting_variable())), ElementsAre("0"));
}

TEST(oci_runtime_request, annotations_take_precedence) {
  auto config = with_variables({"NVIDIA_VISIBLE_DEVICES=0"});
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/7");
  config["annotations"] = {
      {"cdi.k8s.io/b", "v.com/c=2"}, {"x", "y"}, {"cdi.k8s.io/a", "v.com/c=1, v.com/d=3"}};
  settings chosen;
  chosen.accept_mounts = true;
  chosen.annotation_prefixes = {"cdi.k8s.io/"};
  EXPECT_THAT(read_request(config, chosen).devices,
              ElementsAre(requested_device{"v.com/c=1", "annotation cdi.k8s.io/a"},
                          requested_device{"v.com/d=3", "annotation cdi.k8s.io/a"},
                          requested_device{"v.com/c=2", "annotation cdi.k8s.io/b"}));
  config["annotations"] = {{"cdi.k8s.io/b", ""}};
  EXPECT_THAT(names(read_request(config, chosen)), ElementsAre("7"));
  chosen.annotation_prefixes = {"mine/"};
  config["annotations"] = {{"cdi.k8s.io/b", "v.com/c=2"}, {"mine/x", "v.com/c=5"}};
  EXPECT_THAT(names(read_request(config, chosen)), ElementsAre("v.com/c=5"));
}

TEST(oci_runtime_request, annotation_requires_qualified_names) {
  cdi::oci_config config;
  config["annotations"] = {{"cdi.k8s.io/a", "v.com/c=1,0"}};
  settings chosen;
  chosen.annotation_prefixes = {"cdi.k8s.io/"};
  try {
    (void)read_request(config, chosen);
    FAIL() << "taken";
  } catch (const error& failure) {
    EXPECT_STREQ(failure.what(),
                 "read annotation \"cdi.k8s.io/a\": \"0\" is not the qualified name of a device, "
                 "such as nvidia.com/gpu=0");
  }
}

TEST(oci_runtime_request, mounts_take_precedence_over_variable) {
  auto config = with_variables({"NVIDIA_VISIBLE_DEVICES=9"});
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/0");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices//GPU-1/");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/0");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices-x/1");
  mount(config, "/dev/zero", "/var/run/nvidia-container-devices/2");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/cdi/v.com/c/0");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/cdi/v.com/c=1:0");
  mount(config, "/dev/null", "/var/run/nvidia-container-devices/imex/0");
  settings chosen = accepting_variable();
  const auto off = read_request(config, chosen);
  EXPECT_THAT(names(off), ElementsAre("9"));
  EXPECT_EQ(off.ignored.size(), 6U);
  EXPECT_EQ(off.ignored.front(), "mount /var/run/nvidia-container-devices/0: accept_mounts is off");
  chosen.accept_mounts = true;
  const auto on = read_request(config, chosen);
  EXPECT_THAT(names(on), ElementsAre("0", "GPU-1", "v.com/c=0", "v.com/c=1:0"));
  EXPECT_EQ(on.devices.front().reason, "mount /var/run/nvidia-container-devices/0");
  EXPECT_THAT(on.ignored,
              ElementsAre("mount /var/run/nvidia-container-devices/imex/0: IMEX channels are not "
                          "provided"));
}

TEST(oci_runtime_request, capabilities_are_optional) {
  EXPECT_EQ(read_request(with_variables({}), {}).capabilities, std::nullopt);
  EXPECT_EQ(read_request(with_variables({"NVIDIA_DRIVER_CAPABILITIES="}), {}).capabilities,
            std::nullopt);
  EXPECT_EQ(read_request(with_variables({"NVIDIA_DRIVER_CAPABILITIES=all"}), {}).capabilities,
            "all");
}

}  // namespace
}  // namespace gpushm::oci_runtime
