// SPDX-License-Identifier: Apache-2.0
// `gpushm cdi hook` as run by container engines: the state of a container on standard input, and
// image roots, some of them hostile.

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files/file.hpp"
#include "base/files/sanitizers.hpp"
#include "tests/hook/fixture.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// ---- the command ----

TEST_P(cdi_hook, an_unknown_hook_warns_and_succeeds) {
  const auto result = run({"update-application-profile", "--new", "option"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(
      result.err,
      "gpushm: warning: unknown hook \"update-application-profile\" in this version: ignored\n");
}

TEST_P(cdi_hook, unknown_option_is_ignored) {
  const auto result = run({"create-symlinks", "--new", "x", "--link=a::/b", "--flag"});
  EXPECT_EQ(result.status, exited(0)) << result.err;
  EXPECT_EQ(fs::read_symlink(inside("/b")), "a");
}

TEST_P(cdi_hook, missing_name_is_a_usage_error) {
  const auto result = run({});
  EXPECT_EQ(result.status, exited(2));
  EXPECT_THAT(result.err, StartsWith("gpushm: run hook: the hook's name is missing"));
}

TEST_P(cdi_hook, invalid_state_is_rejected) {
  const std::string operation = "gpushm: find the container's root";
  const std::string next = " (run hooks from a container engine, which passes the OCI state)\n";
  for (const char* text : {"", "{}", "[]", "no json", R"({"bundle":7})", R"({"bundle":"x"})"}) {
    put_file(state(), text);
    const auto result = run({"create-symlinks", "--link", "a::/b"});
    EXPECT_EQ(result.status, exited(1));
    EXPECT_EQ(result.err,
              operation +
                  ": standard input is not the state of a container with an absolute bundle" + next)
        << text;
  }
  const std::string bundle = cli_.directory() / "bundle";
  put_file(state(), nlohmann::json{{"bundle", bundle}}.dump());
  for (const char* text : {"", "{}", R"({"root":[]})", R"({"root":{"path":""}})"}) {
    put_file(bundle + "/config.json", text);
    EXPECT_EQ(run({"update-ldcache"}).err,
              operation + " \"" + bundle + "/config.json\": root.path is missing" + next)
        << text;
  }
  fs::remove(bundle + "/config.json");
  EXPECT_EQ(run({"update-ldcache"}).err,
            operation + " \"" + bundle + "/config.json\": No such file or directory" + next);
  put_file(bundle + "/config.json", std::string((16U << 20U) + 1, ' '));
  EXPECT_EQ(run({"update-ldcache"}).err,
            operation + " \"" + bundle + "/config.json\": it is larger than 16 MiB" + next);
  put_file(bundle + "/config.json", R"({"root":{"path":"//"}})");
  EXPECT_EQ(
      run({"update-ldcache"}).err,
      operation + " \"" + bundle + "/config.json\": root.path is the host's root directory" + next);
}

// ---- create-symlinks ----

TEST_P(cdi_hook, links_are_created_with_directories) {
  put_file(inside("/usr/lib/libcuda.so"), "an old file");
  put_link(inside("/usr/lib/libcuda.so.1"), "elsewhere");
  const std::vector<std::string> words{"create-symlinks",
                                       "--link",
                                       "libcuda.so.550.1.2::/usr/lib/libcuda.so.1",
                                       "--link",
                                       "libcuda.so.1::/usr/lib/libcuda.so",
                                       "--link",
                                       "../card1::/dev/dri/by-path/pci-0000:10:00.0-card"};
  for (int round = 0; round < 2; ++round) {
    const auto result = run(words);
    EXPECT_EQ(result.status, exited(0)) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(fs::read_symlink(inside("/usr/lib/libcuda.so.1")), "libcuda.so.550.1.2");
    EXPECT_EQ(fs::read_symlink(inside("/usr/lib/libcuda.so")), "libcuda.so.1");
    EXPECT_EQ(fs::read_symlink(inside("/dev/dri/by-path/pci-0000:10:00.0-card")), "../card1");
    EXPECT_EQ(std::distance(fs::directory_iterator(inside("/usr/lib")), {}), 2);
  }
}

TEST_P(cdi_hook, malformed_link_is_rejected) {
  for (const std::string link : {"a", "a::", "::/b", "a::/b::/c", "a::/b/", "a::/b/.."}) {
    const auto result = run({"create-symlinks", "--link", link});
    EXPECT_EQ(result.status, exited(1)) << link;
    EXPECT_EQ(result.err,
              "gpushm: create a link in the container \"" + link +
                  "\": it is not TARGET::LINK (generate the CDI document again)\n");
  }
  EXPECT_TRUE(fs::is_empty(root()));
}

TEST_P(cdi_hook, a_directory_is_not_replaced) {
  fs::create_directories(inside("/usr/lib/libcuda.so"));
  const auto result = run({"create-symlinks", "--link", "a::/usr/lib/libcuda.so"});
  EXPECT_EQ(result.status, exited(1));
  EXPECT_THAT(
      result.err,
      StartsWith("gpushm: create a link in the container \"/usr/lib/libcuda.so\": rename: Is "
                 "a directory (EISDIR)"));
  EXPECT_EQ(std::distance(fs::directory_iterator(inside("/usr/lib")), {}), 1);
}

// A file that the container's user, or another hook, mounted there, and a directory.
TEST_P(cdi_hook, a_mount_at_the_place_of_a_link_stays) {
  if (!can_mount()) {
    GTEST_SKIP() << "mounts need root and unshare";
  }
  const std::string file = "/usr/lib/libcuda.so.1";
  const std::string directory = "/usr/lib/libcuda.so";
  put_file(inside(file), "of the image");
  put_file(inside("/mounted"), "of the user");
  fs::create_directories(inside(directory));
  const auto result = run({"create-symlinks",
                           "--link",
                           "a::" + file,
                           "--link",
                           "b::" + directory,
                           "--link",
                           "c::/usr/lib/libother.so"},
                          "mount --bind " + inside("/mounted") + " " + inside(file) +
                              " && mount -t tmpfs tmpfs " + inside(directory) + " && exec \"$@\"",
                          true);
  EXPECT_EQ(result.status, exited(0)) << result.err;
  const std::string warning = "gpushm: warning: create a link in the container \"";
  EXPECT_EQ(result.err,
            warning + file + "\": something is mounted there, and stays\n" + warning + directory +
                "\": something is mounted there, and stays\n");
  EXPECT_EQ(fs::read_symlink(inside("/usr/lib/libother.so")), "c");
  EXPECT_EQ(content_of(inside(file)), "of the image");
  EXPECT_EQ(std::distance(fs::directory_iterator(inside("/usr/lib")), {}), 3);
}

TEST_P(cdi_hook, hostile_image_gets_no_link_outside) {
  put_link(inside("/lib"), outside());
  put_link(inside("/usr"), "../../outside");
  put_link(inside("/opt"), "/../../../outside");
  put_link(inside("/srv"), "/proc/self/root" + outside());
  put_link(inside("/var"), "/proc/1/cwd");
  put_link(inside("/secret"), outside() + "/secret");
  for (const std::string link : {"/lib/x",
                                 "/usr/x",
                                 "/opt/x",
                                 "/srv/x",
                                 "/var/x",
                                 "/secret",
                                 "/../outside/x",
                                 "/../../outside/x"}) {
    static_cast<void>(run({"create-symlinks", "--link", "target::" + link}));
    expect_outside_untouched();
  }
  EXPECT_EQ(fs::read_symlink(inside("/secret")), "target");
}

// ---- enable-cuda-compat ----

TEST_P(cdi_hook, newer_compatibility_libraries_are_preferred) {
  const std::string file = inside("/etc/ld.so.conf.d/00-gpushm-1-cuda-compat.conf");
  put_file(inside("/usr/local/cuda-12.4/compat/libcuda.so.550.54.15"), "");
  put_link(inside("/usr/local/cuda-12.4/compat/libcuda.so.1"), "libcuda.so.550.54.15");
  put_link(inside("/usr/local/cuda"), "/usr/local/cuda-12.4");
  const auto run_with = [&](const std::string& version) {
    const auto result = run({"enable-cuda-compat", "--host-driver-version=" + version});
    EXPECT_EQ(result.status, exited(0)) << result.err;
    return result.err;
  };
  EXPECT_EQ(run_with("535.129.03"), "");
  EXPECT_EQ(content_of(file), "/usr/local/cuda/compat\n");
  // It is removed when the host's driver is as new.
  for (const char* version : {"550.1", "570.86.10", "", "x"}) {
    EXPECT_EQ(run_with("535.129.03"), "");
    EXPECT_EQ(run_with(version), "");
    EXPECT_FALSE(fs::exists(file)) << version;
  }
  put_file(inside("/usr/local/cuda-12.4/compat/libcuda.so.545.23.06"), "");
  EXPECT_EQ(run_with("535.129.03"),
            "gpushm: warning: /usr/local/cuda/compat contains several versions of libcuda; none is "
            "preferred\n");
  EXPECT_FALSE(fs::exists(file));
}

TEST_P(cdi_hook, image_without_compatibility_libraries_is_unchanged) {
  const auto result = run({"enable-cuda-compat", "--host-driver-version", "535.129.03"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(fs::is_empty(root()));
}

TEST_P(cdi_hook, compatibility_libraries_outside_are_ignored) {
  put_file(cli_.directory() / "compat/libcuda.so.999.1.2", "");
  put_link(inside("/usr/local/cuda"), "../../../..");
  const auto result = run({"enable-cuda-compat", "--host-driver-version", "535.129.03"});
  EXPECT_EQ(result.status, exited(0));
  EXPECT_FALSE(fs::exists(inside("/etc")));
}

// ---- disable-device-node-modification ----

class cdi_hook_params : public cdi_hook {
 protected:
  void SetUp() override {
    if (!can_mount()) {
      GTEST_SKIP() << "this process may not mount";
    }
    cdi_hook::SetUp();
    put_file(params_, "DeviceFileUID: 0\nModifyDeviceFiles: 1\nEnableMSI: 1\n");
    put_file(inside("/proc/driver/nvidia/params"), "the kernel's\n");
    put_file(inside("/proc/driver/nvidia/version"), "beside\n");
  }
  const std::string params_ = cli_.directory() / "params";
};

TEST_P(cdi_hook_params, params_file_is_replaced_without_traces) {
  const auto result = run({"disable-device-node-modification", "--params", params_},
                          "before=$(wc -l < /proc/self/mounts); \"$@\" || exit; cd " + root() +
                              "/proc/driver/nvidia; cat params version; "
                              "after=$(wc -l < /proc/self/mounts); echo $((after - before)); "
                              "grep " +
                              root() +
                              " /proc/self/mountinfo | cut -d' ' -f5,6; "
                              "echo x > params",
                          true);
  EXPECT_EQ(result.out,
            "DeviceFileUID: 0\nModifyDeviceFiles: 0\nEnableMSI: 1\nbeside\n1\n" + root() +
                "/proc/driver/nvidia/params ro,nosuid,nodev,noexec,relatime\n")
      << result.err;
  EXPECT_THAT(result.err, HasSubstr("Read-only file system"));
  EXPECT_EQ(content_of(inside("/proc/driver/nvidia/params")), "the kernel's\n");
}

TEST_P(cdi_hook_params, nothing_is_mounted_when_already_disabled) {
  const std::string script = "\"$@\" || exit; grep -c " + root() + " /proc/self/mountinfo || true";
  for (const char* text : {"ModifyDeviceFiles: 0\n", "XModifyDeviceFiles: 1\n", ""}) {
    put_file(params_, text);
    const auto result =
        run({"disable-device-node-modification", "--params", params_}, script, true);
    EXPECT_EQ(result.out, "0\n") << text << result.err;
  }
  fs::remove(params_);
  EXPECT_EQ(run({"disable-device-node-modification", "--params", params_}, script, true).out,
            "0\n");
  put_file(params_, "ModifyDeviceFiles: 1\n");
  fs::remove_all(inside("/proc"));
  const auto hidden = run({"disable-device-node-modification", "--params", params_}, script, true);
  EXPECT_EQ(hidden.status, exited(0)) << hidden.err;
  EXPECT_EQ(hidden.out, "0\n");
}

TEST_P(cdi_hook_params, hostile_image_gets_no_mount_outside) {
  fs::remove_all(inside("/proc/driver"));
  put_file(outside() + "/nvidia/params", "outside\n");
  const std::string script = "\"$@\"; cat " + outside() + "/nvidia/params; grep -c " + outside() +
                             " /proc/self/mountinfo || true";
  for (const std::string& link :
       {outside(), std::string("../../../../outside"), "/proc/self/root" + outside()}) {
    fs::remove(inside("/proc/driver"));
    put_link(inside("/proc/driver"), link);
    const auto result =
        run({"disable-device-node-modification", "--params", params_}, script, true);
    EXPECT_EQ(result.out, "outside\n0\n") << link << result.err;
  }
}

// It runs as root in namespaces of containers, with nothing of the machine but the kernel.
TEST(cdi_hook_program, is_static_and_position_independent) {
  const std::string bytes = content_of(gpushm_testing::own_program("gpushm-cdi-hook"));
  Elf64_Ehdr header{};
  ASSERT_GT(bytes.size(), sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  EXPECT_EQ(header.e_type, ET_DYN);
  ASSERT_EQ(header.e_phentsize, sizeof(Elf64_Phdr));
  ASSERT_GE(bytes.size(), header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    std::memcpy(&part, bytes.data() + header.e_phoff + i * sizeof part, sizeof part);
    // A sanitizer's library needs the loader.
    EXPECT_TRUE(part.p_type != PT_INTERP || gpushm::base::under_sanitizer);
  }
}

INSTANTIATE_TEST_SUITE_P(of,
                         cdi_hook,
                         ::testing::Values("gpushm", "gpushm-cdi-hook"),
                         name_of_hook_program);
INSTANTIATE_TEST_SUITE_P(of,
                         cdi_hook_params,
                         ::testing::Values("gpushm", "gpushm-cdi-hook"),
                         name_of_hook_program);

}  // namespace
}  // namespace gpushm_tests
