// SPDX-License-Identifier: Apache-2.0
// Two runc containers whose specs `gpushm cdi inject` wrote share GPU memory: fake GPUs here, real
// ones where there are any. Each has an image of its own with a C library, a shell and the command;
// the driver, its links and the linker's cache come from the CDI document and its hooks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cdi_machine.hpp"
#include "container/gpu_access.hpp"
#include "container/image_root.hpp"
#include "container/support.hpp"
#include "process/deadline.hpp"
#include "process/programs.hpp"
#include "support/oci/cleanup_guard.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::patience;
using gpushm_testing::run_program;
using gpushm_testing::spawn_options;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

json system_mount(const char* type, const char* destination, json options) {
  return {{"type", type},
          {"source", type},
          {"destination", destination},
          {"options", std::move(options)}};
}
json bound(const std::string& from, const std::string& to, bool writable) {
  return {{"type", "bind"},
          {"source", from},
          {"destination", to},
          {"options", {"rbind", "rprivate", writable ? "rw" : "ro"}}};
}

/// What an engine would write for a plain container: no device, no capability, nobody's uid.
json plain_config(const cdi_machine& machine,
                  const std::string& id,
                  const std::vector<std::string>& argv) {
  json config{{"ociVersion", "1.0.2"}, {"root", {{"path", "rootfs"}}}};
  auto& process = config["process"];
  process = {{"user", {{"uid", 1000}, {"gid", 1000}}},
             {"args", argv},
             {"env", {"PATH=/usr/bin"}},
             {"cwd", "/"},
             {"noNewPrivileges", true}};
  for (const auto& [name, value] : machine.environment()) {
    process["env"].push_back(name + "=" + value);
  }
  json mounts = json::array();
  mounts.push_back(system_mount("proc", "/proc", {"nosuid", "noexec", "nodev"}));
  mounts.push_back(system_mount("tmpfs", "/dev", {"nosuid", "mode=755"}));
  mounts.push_back(system_mount("tmpfs", "/tmp", {"nosuid", "nodev", "mode=1777"}));
  // NVIDIA's driver looks for its devices there.
  mounts.push_back(system_mount("sysfs", "/sys", {"nosuid", "noexec", "nodev", "ro"}));
  mounts.push_back(bound(gpushm_testing::own_program("gpushm"), "/usr/bin/gpushm", false));
  for (const auto& mount : machine.memory()) {
    mounts.push_back(bound(mount.source, mount.destination, mount.writable));
  }
  config["mounts"] = std::move(mounts);
  json namespaces = json::array();
  for (const char* type : {"pid", "ipc", "uts", "mount", "network"}) {
    namespaces.push_back(json{{"type", type}});
  }
  json nothing{{"allow", false}, {"access", "rwm"}};
  json& kernel = config["linux"];
  kernel["cgroupsPath"] = "/" + id;
  kernel["namespaces"] = std::move(namespaces);
  kernel["resources"]["devices"] = json::array();
  kernel["resources"]["devices"].push_back(std::move(nothing));
  return config;
}

class cdi_share : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    if (GetParam() && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    machine_ = std::make_unique<cdi_machine>(GetParam());
    const auto made = machine_->generate({"--output", documents_ / "gpu.yaml"});
    ASSERT_EQ(made.status, exited(0)) << made.err;
    broker_ = machine_->serve_and_share(domains_.path(), documents_ / "share.yaml");
  }

  struct running {
    std::unique_ptr<gpushm::app::oci::cleanup_guard> guard;
    std::unique_ptr<child> process;
  };

  /// runc with what `gpushm cdi inject` made of a plain config.
  [[nodiscard]] running start(const std::vector<std::string>& devices,
                              std::vector<std::string> arguments) {
    const std::string id =
        "gpushm-cdi-" + std::to_string(::getpid()) + "-" + std::to_string(++count_);
    const auto runc = gpushm_testing::find_runc().value();
    running made;
    made.guard = std::make_unique<gpushm::app::oci::cleanup_guard>("gpushm-cdi", runc.command, id);
    const std::string& bundle = made.guard->directory();
    gpushm_testing::make_image_root(bundle + "/rootfs", machine_->driver_libraries());
    arguments.insert(arguments.begin(), "gpushm");
    std::ofstream(bundle + "/config.json") << plain_config(*machine_, id, arguments).dump(2);
    spawn_options inject;
    inject.argv = {gpushm_testing::own_program("gpushm"),
                   "cdi",
                   "inject",
                   "--spec",
                   bundle + "/config.json",
                   "--in-place",
                   "--spec-dir",
                   documents_.path()};
    inject.argv.insert(inject.argv.end(), devices.begin(), devices.end());
    const auto injected = run_program(inject);
    EXPECT_EQ(injected.status, exited(0)) << injected.err;
    spawn_options run;
    run.argv = runc.command;
    run.argv.insert(run.argv.end(), {"--root", bundle + "/state", "run", "--bundle", bundle, id});
    made.process = std::make_unique<child>(child::start(run));
    return made;
  }

  std::unique_ptr<cdi_machine> machine_;
  gpushm_testing::temp_dir documents_{0755};
  gpushm_testing::temp_dir domains_{0755};
  std::optional<gpushm::broker> broker_;
  int count_ = 0;
};

constexpr const char* share_device = "gpushm.dev/share=default";

TEST_P(cdi_share, two_containers_use_the_same_bytes) {
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=0", share_device}, role_arguments("consumer", 0));
  expect_roles_share(*producer.process, *consumer.process);
}

TEST_P(cdi_share, across_two_gpus) {
  if (!machine_->has_two()) {
    GTEST_SKIP() << "one GPU on this machine";
  }
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=all", share_device}, role_arguments("consumer", 1));
  expect_roles_share(*producer.process, *consumer.process);
}

TEST_P(cdi_share, a_gpu_that_is_not_given_is_named) {
  if (!machine_->has_two()) {
    GTEST_SKIP() << "one GPU on this machine";
  }
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=1", share_device}, role_arguments("consumer", 0));
  EXPECT_EQ(consumer.process->wait_exit(patience(seconds(60))), exited(1));
  EXPECT_THAT(consumer.process->text(gpushm_testing::stream::out),
              HasSubstr("\"code\":\"device_not_visible\""));
}

TEST_P(cdi_share, without_the_share_device_there_is_no_broker) {
  auto alone = start({"nvidia.com/gpu=0"}, {"ls"});
  EXPECT_EQ(alone.process->wait_exit(patience(seconds(60))), exited(1));
  EXPECT_THAT(alone.process->text(gpushm_testing::stream::err),
              HasSubstr("/run/gpushm/d/default/socket"));
}

INSTANTIATE_TEST_SUITE_P(, cdi_share, ::testing::Bool(), [](const auto& chosen) {
  return chosen.param ? "real_gpu" : "fake_gpu";
});

}  // namespace
}  // namespace gpushm_tests
