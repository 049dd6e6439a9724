// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/support/oci/config.hpp"
#include "apps/support/oci/container.hpp"
#include "gpushm/error.hpp"
#include "tests/support/broker_process/scoped_variable.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::app::oci {
namespace {

using nlohmann::json;

container_options minimal() {
  container_options options;
  options.argv = {"/bin/true"};
  return options;
}

json namespace_of(const json& document, const std::string& type) {
  for (const auto& entry : document["linux"]["namespaces"]) {
    if (entry["type"] == type) {
      return entry;
    }
  }
  return nullptr;
}

json mount_at(const json& document, const std::string& place) {
  json result;
  for (const auto& mount : document["mounts"]) {
    if (mount["destination"] == place) {
      result = mount;
    }
  }
  return result;
}

TEST(oci_config, default_has_no_privileges) {
  const auto document = config(minimal(), "/test");
  for (const char* set : {"bounding", "effective", "inheritable", "permitted", "ambient"}) {
    EXPECT_EQ(document["process"]["capabilities"][set], json::array()) << set;
  }
  EXPECT_EQ(document["process"]["noNewPrivileges"], true);
  EXPECT_EQ(document["process"].count("rlimits"), 0U);
  EXPECT_EQ(document["root"]["readonly"], true);
  EXPECT_EQ(document["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ALLOW");
}

TEST(oci_config, privileged_is_limited_to_own_capabilities) {
  auto options = minimal();
  options.privileged = true;
  const auto document = config(options, "/test");
  const json capabilities = capability_names(bounding_set());
  for (const char* set : {"bounding", "effective", "permitted"}) {
    EXPECT_EQ(document["process"]["capabilities"][set], capabilities) << set;
  }
  EXPECT_EQ(document["process"]["capabilities"]["ambient"], json::array());
  EXPECT_EQ(document["process"]["noNewPrivileges"], false);
  EXPECT_EQ(document["linux"].count("seccomp"), 0U);
  EXPECT_EQ(document["linux"]["resources"]["devices"],
            json::parse(R"([{"allow":true,"access":"rwm"}])"));
}

TEST(oci_config, capabilities_have_names) {
  EXPECT_THAT(capability_names(0), ::testing::IsEmpty());
  EXPECT_THAT(capability_names(1U | 1U << 21U | 1U << 24U),
              ::testing::ElementsAre("CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"));
  EXPECT_THAT(capability_names(std::uint64_t{3} << 40U),
              ::testing::ElementsAre("CAP_CHECKPOINT_RESTORE"));
}

TEST(oci_config, has_every_namespace) {
  auto options = minimal();
  const auto document = config(options, "/test");
  EXPECT_EQ(document["linux"]["namespaces"].size(), 6U);
  EXPECT_EQ(namespace_of(document, "pid"), json::parse(R"({"type":"pid"})"));
  EXPECT_EQ(mount_at(document, "/dev/shm")["type"], "tmpfs");
  options.user_ns = user_namespace{200'000, 1'000};
  const auto mapped = config(options, "/test");
  EXPECT_EQ(mapped["linux"]["namespaces"].size(), 7U);
  EXPECT_EQ(mapped["linux"]["uidMappings"][0]["hostID"], 200'000);
  EXPECT_EQ(mapped["linux"]["gidMappings"][0]["size"], 1'000);
}

TEST(oci_config, namespace_can_be_shared) {
  auto options = minimal();
  options.sysfs = true;
  EXPECT_EQ(mount_at(config(options, "/test"), "/sys")["type"], "sysfs");
  options.pid.host = true;
  options.ipc.path = "/proc/7/ns/ipc";
  options.net.path = "/proc/7/ns/net";
  options.shm = "/dev/shm";
  const auto document = config(options, "/test");
  EXPECT_TRUE(namespace_of(document, "pid").is_null());
  EXPECT_EQ(namespace_of(document, "ipc"),
            json::parse(R"({"type":"ipc","path":"/proc/7/ns/ipc"})"));
  EXPECT_EQ(namespace_of(document, "network"),
            json::parse(R"({"type":"network","path":"/proc/7/ns/net"})"));
  EXPECT_EQ(mount_at(document, "/dev/shm"),
            json::parse(R"({"destination":"/dev/shm","type":"bind","source":"/dev/shm",
                            "options":["bind","rw","nosuid","rprivate"]})"));
  EXPECT_EQ(mount_at(document, "/sys")["type"], "bind");
}

TEST(oci_config, allows_only_listed_devices) {
  auto options = minimal();
  EXPECT_EQ(config(options, "/test")["linux"]["resources"]["devices"].size(), 1U);
  options.device_nodes = {{"/dev/null", {}}};
  const auto rules = config(options, "/test")["linux"]["resources"]["devices"];
  ASSERT_EQ(rules.size(), 2U);
  EXPECT_EQ(rules[0]["allow"], false);
  EXPECT_EQ(rules[1]["major"], 1);
  EXPECT_EQ(rules[1]["minor"], 3);
}

TEST(oci_config, device_can_have_another_path_inside) {
  auto options = minimal();
  options.device_nodes = {{"/dev/null", "/dev/nvidia0"}};
  const auto document = config(options, "/test");
  EXPECT_EQ(mount_at(document, "/dev/nvidia0")["source"], "/dev/null");
  EXPECT_EQ(document["linux"]["resources"]["devices"][1]["minor"], 3);
}

TEST(oci_config, non_device_is_an_error) {
  auto options = minimal();
  options.device_nodes = {{"/etc", {}}};
  try {
    (void)config(options, "/test");
    FAIL() << "accepted as a device";
  } catch (const error& refused) {
    EXPECT_EQ(refused.code(), errc::invalid_argument);
    EXPECT_STREQ(refused.what(), "create container \"/etc\": is not a character device");
  }
}

TEST(oci_runtime, is_found_by_name_or_path) {
  EXPECT_EQ(find_runtime("no-such-runtime"), std::nullopt);
  EXPECT_EQ(find_runtime("/etc"), std::nullopt);
  const auto found = find_runtime("/bin/sh");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, "/bin/sh");
  EXPECT_THAT(found->command, ::testing::ElementsAre("/bin/sh"));
}

TEST(oci_runtime, last_error_is_read_from_both_log_formats) {
  EXPECT_EQ(last_message(""), "");
  EXPECT_EQ(
      last_message("time=\"2026-01-01T00:00:00Z\" level=warning msg=\"first\"\n"
                   "time=\"2026-01-01T00:00:00Z\" level=error msg=\"exec \\\"/x\\\": gone\"\n"),
      "exec \"/x\": gone");
  EXPECT_EQ(last_message("2026-01-01T00:00:00.5Z: executable file `x` not found\n"),
            "executable file `x` not found");
}

/// crun's process ends after its container, and may create its state directory once more.
TEST(oci_container, leaves_nothing_of_a_runtime_that_ends_last) {
  const gpushm_testing::temp_dir folder;
  const std::string program = folder / "runtime";
  std::ofstream(program) << R"(#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=$2; shift ;;
    --pid-file) pid_file=$2; shift ;;
    delete) exit 0 ;;
  esac
  shift
done
echo $$ > "$pid_file"
while [ -e "$pid_file" ]; do sleep 0.02; done
sleep 0.2
mkdir -p "$root"
)";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(folder / "bundles");
  const gpushm_tests::scoped_variables there("TMPDIR", folder / "bundles");
  {
    container one({program, {program}}, minimal(), "gpushm-test-last");
    EXPECT_GT(one.wait_started(base::deadline_in(std::chrono::seconds(20))), 0);
    EXPECT_FALSE(std::filesystem::is_empty(folder / "bundles"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "bundles"));
}

}  // namespace
}  // namespace gpushm::app::oci
