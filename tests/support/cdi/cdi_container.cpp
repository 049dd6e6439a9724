// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cdi/cdi_container.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/container/image_root.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::spawn_options;
using nlohmann::json;

namespace {

json system_mount(const char* type, const char* destination, json options) {
  return {{"type", type},
          {"source", type},
          {"destination", destination},
          {"options", std::move(options)}};
}
json bound(const std::string& from, const std::string& text, bool writable) {
  return {{"type", "bind"},
          {"source", from},
          {"destination", text},
          {"options", {"rbind", "rprivate", writable ? "rw" : "ro"}}};
}

/// The config an engine writes for a plain container: no devices, no capabilities, user nobody.
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
  // NVIDIA's driver searches there for its devices.
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

}  // namespace

cdi_container start_cdi_container(const cdi_machine& machine,
                                  const std::string& spec_directory,
                                  const std::vector<std::string>& devices,
                                  std::vector<std::string> arguments) {
  static std::atomic<int> count{0};
  const std::string id = "gpushm-cdi-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  const auto runc = gpushm_testing::find_runc().value();
  cdi_container created;
  created.guard = std::make_unique<gpushm::app::oci::cleanup_guard>("gpushm-cdi", runc.command, id);
  const std::string& bundle = created.guard->directory();
  gpushm_testing::make_image_root(bundle + "/rootfs", machine.driver_libraries());
  arguments.insert(arguments.begin(), "gpushm");
  std::ofstream(bundle + "/config.json") << plain_config(machine, id, arguments).dump(2);
  spawn_options inject;
  inject.argv = {gpushm_testing::own_program("gpushm"),
                 "cdi",
                 "inject",
                 "--spec",
                 bundle + "/config.json",
                 "--in-place",
                 "--spec-dir",
                 spec_directory};
  inject.argv.insert(inject.argv.end(), devices.begin(), devices.end());
  const auto injected = gpushm_testing::run_program(inject);
  EXPECT_EQ(injected.status, exited(0)) << injected.err;
  spawn_options run;
  run.argv = runc.command;
  run.argv.insert(run.argv.end(), {"--root", bundle + "/state", "run", "--bundle", bundle, id});
  created.process = std::make_unique<child>(child::start(run));
  return created;
}

}  // namespace gpushm_tests
