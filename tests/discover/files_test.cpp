// SPDX-License-Identifier: Apache-2.0
// Files below a root: links never lead out, versions are distinguished, other architectures are
// ignored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "containers/discover/driver_files/driver_files.hpp"
#include "containers/discover/driver_files/hooks.hpp"
#include "containers/discover/driver_files/trusted_path.hpp"
#include "gpushm/error.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::discover {
namespace {

using gpushm_tests::elf_stub;
using gpushm_tests::put_file;
using gpushm_tests::put_link;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class discover_files : public ::testing::Test {
 protected:
  void library(const std::string& path, const std::string& soname = "libcuda.so.1", int bits = 64) {
    put_file(root_.path() + path, elf_stub(soname, bits));
  }
  [[nodiscard]] root_view view() const { return root_view(root_.path()); }

  gpushm_testing::temp_dir root_;
};

TEST_F(discover_files, links_are_followed_inside) {
  put_file(root_ / "etc/target", "");
  put_link(root_ / "absolute", "/etc/target");
  put_link(root_ / "far", "../../../../../../etc/target");
  put_link(root_ / "sub/up", "../../absolute");
  put_link(root_ / "directory", "/etc");
  put_link(root_ / "outside", "/proc/self/root/etc/passwd");
  put_link(root_ / "circle", "circle");
  put_link(root_ / "a", "/b");
  put_link(root_ / "b", "a");
  const root_view view(root_.path());
  for (const char* path :
       {"/absolute", "/far", "/sub/up", "/directory/target", "/etc/../../etc/./target"}) {
    EXPECT_EQ(view.resolve(path), "/etc/target") << path;
  }
  for (const char* path : {"/outside", "/circle", "/a", "/none", "/etc/target/x", "/etc/passwd"}) {
    EXPECT_EQ(view.resolve(path), std::nullopt) << path;
  }
  EXPECT_EQ(view.resolve_parent("/directory/target"), "/etc/target");
  EXPECT_EQ(view.resolve_parent("/directory/none"), "/etc/none");
  EXPECT_EQ(view.resolve("/"), "/");
  EXPECT_THAT(view.names("/directory"), ElementsAre("target"));
  EXPECT_THAT(view.names("/outside"), IsEmpty());
  EXPECT_EQ(view.outside("/etc/target"), root_ / "etc/target");
}

TEST_F(discover_files, slashes_around_root_are_ignored) {
  put_file(root_ / "file", "");
  EXPECT_EQ(root_view(root_.path() + "//").outside("/file"), root_ / "file");
  EXPECT_EQ(root_view("/").outside("/file"), "/file");
  EXPECT_EQ(root_view("").text(), "/");
  EXPECT_EQ(root_view(root_.path() + "/").text(), root_.path());
}

TEST_F(discover_files, version_comes_from_libcuda) {
  library("/usr/lib64/libcuda.so.550.54.15");
  library("/usr/lib64/libnvidia-ml.so.535.1.2");
  const auto driver = find_driver(view(), {});
  EXPECT_EQ(driver.version, "550.54.15");
  EXPECT_THAT(driver.directories, ElementsAre("/usr/lib64"));
  EXPECT_THAT(driver.others, IsEmpty());
}

TEST_F(discover_files, without_libcuda_version_comes_from_nvml) {
  library("/usr/lib64/libnvidia-ml.so.535.1.2");
  EXPECT_EQ(find_driver(view(), {}).version, "535.1.2");
}

TEST_F(discover_files, search_path_comes_first) {
  library("/usr/lib64/libcuda.so.550.54.15");
  library("/opt/driver/libcuda.so.570.1.2");
  driver_places places;
  places.search_paths = {"/opt/driver", "/none"};
  const auto driver = find_driver(view(), places);
  EXPECT_EQ(driver.version, "570.1.2");
  EXPECT_THAT(driver.directories, ElementsAre("/opt/driver"));
  EXPECT_THAT(driver.others, ElementsAre("550.54.15 in /usr/lib64"));
}

TEST_F(discover_files, loaded_version_is_selected) {
  library("/usr/lib64/libcuda.so.535.1.2");
  library("/usr/lib64/libcuda.so.550.54.15");
  driver_places places;
  EXPECT_EQ(find_driver(view(), places).version, "535.1.2");
  places.kernel_version = "550.54.15";
  EXPECT_EQ(find_driver(view(), places).version, "550.54.15");
  places.kernel_version = "580.1.2";
  EXPECT_EQ(find_driver(view(), places).version, "535.1.2");
}

TEST_F(discover_files, ld_cache_adds_directories) {
  library("/srv/driver/libcuda.so.550.54.15");
  put_link(root_ / "srv/driver/libcuda.so.1", "libcuda.so.550.54.15");
  EXPECT_THROW(static_cast<void>(find_driver(view(), {})), error);
  put_file(root_ / "etc/ld.so.cache",
           gpushm_tests::ld_cache_file({"/srv/driver/libcuda.so.1"}, false));
  EXPECT_THAT(find_driver(view(), {}).directories, ElementsAre("/srv/driver"));
  driver_places elsewhere;
  elsewhere.ld_cache_path = root_ / "none";
  EXPECT_THROW(static_cast<void>(find_driver(view(), elsewhere)), error);
}

TEST_F(discover_files, non_driver_files_are_ignored) {
  library("/usr/lib/libcuda.so.550.54.15", "libcuda.so.1", 32);
  put_file(root_ / "usr/lib64/libcuda.so.550.54.15", "#!/bin/sh");
  put_link(root_ / "usr/lib64/libcuda.so.1", "libcuda.so.550.54.15");
  put_link(root_ / "usr/lib64/libcuda.so.560.1.2", "libcuda.so.560.1.2");
  library("/usr/lib64/libcuda.so.not.a.version");
  try {
    static_cast<void>(find_driver(view(), {}));
    FAIL() << "it was found";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::driver_unavailable);
    EXPECT_EQ(std::string(failure.what()),
              "find the driver's libraries \"" + root_.path() +
                  "\": no 64-bit libcuda.so.<version> or libnvidia-ml.so.<version> was found in "
                  "the driver's default directories or the ld cache (set the driver's root with "
                  "--driver-root, or its directory below that root with --library-search-path)");
  }
}

TEST_F(discover_files, other_architectures_and_versions_are_ignored) {
  library("/usr/lib64/libcuda.so.550.54.15");
  library("/usr/lib64/libnvidia-ml.so.535.1.2", "libnvidia-ml.so.1");
  library("/usr/lib64/libGLX_nvidia.so.550.54.15", "libGLX_nvidia.so.0", 32);
  std::vector<std::string> folders;
  const auto libraries = find_libraries(view(), find_driver(view(), {}), folders);
  ASSERT_EQ(libraries.mounts.size(), 1U);
  EXPECT_EQ(libraries.mounts[0].host_path, root_ / "usr/lib64/libcuda.so.550.54.15");
  EXPECT_EQ(libraries.mounts[0].container_path, "/usr/lib64/libcuda.so.550.54.15");
  EXPECT_THAT(libraries.mounts[0].options,
              ElementsAre("ro", "nosuid", "nodev", "rbind", "rprivate"));
  EXPECT_THAT(libraries.links,
              ElementsAre("libcuda.so.550.54.15::/usr/lib64/libcuda.so.1",
                          "libcuda.so.1::/usr/lib64/libcuda.so"));
  EXPECT_THAT(folders, ElementsAre("/usr/lib64"));
  EXPECT_THAT(libraries.found, ElementsAre("1 library in /usr/lib64"));
}

TEST_F(discover_files, link_out_of_root_mounts_no_host_file) {
  library("/usr/lib64/libcuda.so.550.54.15");
  put_link(root_ / "usr/lib64/libevil.so.550.54.15", "/etc/passwd");
  put_link(root_ / "usr/bin/nvidia-smi", "/bin/sh");
  put_link(root_ / "etc/OpenCL/vendors/nvidia.icd", "../../../../../../../../etc/passwd");
  put_link(root_ / "run/nvidia-persistenced/socket", "/proc/self/root/etc/passwd");
  std::vector<std::string> folders;
  EXPECT_EQ(find_libraries(view(), find_driver(view(), {}), folders).mounts.size(), 1U);
  EXPECT_THAT(find_programs(view()).mounts, IsEmpty());
  EXPECT_THAT(find_configurations(view()).mounts, IsEmpty());
  EXPECT_THAT(find_sockets(view()).mounts, IsEmpty());
}

// ---- MPS ----

class discover_mps : public discover_files {
 protected:
  void SetUp() override { ASSERT_EQ(::mkdir((root_ / "tmp").c_str(), 01777), 0); }
  /// Adds a process that looks like the daemon.
  void daemon(const std::string& name = "nvidia-cuda-mps", uid_t uid = ::geteuid()) {
    put_file(proc_ / "4711/comm", name + "\n");
    EXPECT_EQ(::chown((proc_ / "4711").c_str(), uid, uid), 0);
  }
  void directory(const std::string& name, mode_t mode = 0777) {
    ASSERT_EQ(::mkdir((root_.path() + name).c_str(), mode), 0);
    ASSERT_EQ(::chmod((root_.path() + name).c_str(), mode), 0);
  }
  [[nodiscard]] findings find(const std::string& where = default_mps_directory) const {
    return find_mps(view(), where, proc_.path());
  }
  /// The reason for the omission, without the test's directories.
  [[nodiscard]] std::string why_not(const std::string& where = default_mps_directory) const {
    const auto findings = find(where);
    EXPECT_THAT(findings.mounts, IsEmpty());
    std::string text =
        findings.incomplete.empty() ? std::string("absent") : findings.incomplete.front();
    for (auto at = text.find(root_.path()); at != std::string::npos; at = text.find(root_.path())) {
      text.erase(at, root_.path().size());
    }
    return text;
  }
  gpushm_testing::temp_dir proc_;
};

TEST_F(discover_mps, directory_of_running_daemon_is_mounted_once) {
  daemon();
  directory("/tmp/nvidia-mps");
  const auto found = find();
  ASSERT_EQ(found.mounts.size(), 1U);
  EXPECT_EQ(found.mounts.front().host_path, root_ / "tmp/nvidia-mps");
  EXPECT_EQ(found.mounts.front().container_path, "/tmp/nvidia-mps");
  EXPECT_THAT(found.missing, IsEmpty());
}

TEST_F(discover_mps, other_directory_is_mounted_at_default_path) {
  daemon();
  directory("/run");
  ASSERT_EQ(::chmod((root_ / "run").c_str(), 0755), 0);
  directory("/run/pipes", 0755);
  const auto found = find("/run/pipes");
  ASSERT_EQ(found.mounts.size(), 1U);
  EXPECT_EQ(found.mounts.front().host_path, root_ / "run/pipes");
  EXPECT_EQ(found.mounts.front().container_path, "/tmp/nvidia-mps");
}

TEST_F(discover_mps, without_daemon_nothing_is_mounted) {
  EXPECT_EQ(why_not(), "absent");
  directory("/tmp/nvidia-mps");
  EXPECT_EQ(why_not(), "absent");
  daemon("bash");
  EXPECT_EQ(why_not(), "absent");
}

TEST_F(discover_mps, link_is_not_mounted) {
  daemon();
  directory("/etc", 0755);
  put_link(root_ / "tmp/nvidia-mps", "/etc");
  EXPECT_EQ(why_not(), "MPS is left out: /tmp/nvidia-mps is a symbolic link or contains one");
  put_link(root_ / "tmp/link", "/");
  directory("/nvidia-mps");
  EXPECT_EQ(why_not("/tmp/link/nvidia-mps"),
            "MPS is left out: /tmp/link/nvidia-mps is a symbolic link or contains one");
  put_file(root_ / "tmp/file", "");
  EXPECT_EQ(why_not("/tmp/file"), "MPS is left out: /tmp/file is not a directory");
}

TEST_F(discover_mps, directory_of_another_user_is_not_mounted) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "this needs root";
  }
  daemon("nvidia-cuda-mps", 1234);
  directory("/tmp/nvidia-mps");
  EXPECT_EQ(why_not(), "absent");
  ASSERT_EQ(::chown((root_ / "tmp/nvidia-mps").c_str(), 1234, 1234), 0);
  EXPECT_EQ(why_not(), "MPS is left out: /tmp/nvidia-mps belongs to uid 1234");
  daemon();
  EXPECT_EQ(why_not(), "MPS is left out: /tmp/nvidia-mps belongs to uid 1234");
}

TEST_F(discover_mps, replaceable_directory_is_not_mounted) {
  daemon();
  directory("/open");
  directory("/open/mps", 0755);
  EXPECT_EQ(why_not("/open/mps"), "MPS is left out: /open is writable by all users");
}

// ---- replaceable files ----

TEST_F(discover_files, own_file_is_not_replaceable) {
  put_file(root_ / "bin/gpushm", "", 0755);
  put_link(root_ / "link", "bin/gpushm");
  EXPECT_EQ(why_replaceable(root_ / "bin/gpushm"), std::nullopt);
  EXPECT_EQ(why_replaceable(root_ / "link"), std::nullopt);
  EXPECT_EQ(why_replaceable("/no/such/file"), std::nullopt);
  EXPECT_EQ(why_replaceable("/"), std::nullopt);
}

TEST_F(discover_files, writable_parents_are_reported) {
  put_file(root_ / "a/b/gpushm", "", 0755);
  put_link(root_ / "link", "a/b/gpushm");
  const auto with_mode = [&](const std::string& path, mode_t mode) {
    EXPECT_EQ(::chmod((root_ / path).c_str(), mode), 0);
    const auto direct = why_replaceable(root_ / "a/b/gpushm");
    EXPECT_EQ(why_replaceable(root_ / "link"), direct);
    EXPECT_EQ(::chmod((root_ / path).c_str(), 0755), 0);
    return direct.value_or("none");
  };
  EXPECT_EQ(with_mode("a/b/gpushm", 0757), (root_ / "a/b/gpushm") + " is writable by all users");
  EXPECT_EQ(with_mode("a/b", 0777), (root_ / "a/b") + " is writable by all users");
  EXPECT_EQ(with_mode("a", 0777), (root_ / "a") + " is writable by all users");
  EXPECT_EQ(with_mode("a", 01777), "none");
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown((root_ / "a").c_str(), 0, 1234), 0);
    EXPECT_EQ(with_mode("a", 0775), (root_ / "a") + " is writable by the group 1234");
    ASSERT_EQ(::chown((root_ / "a").c_str(), 1234, 0), 0);
    EXPECT_EQ(with_mode("a", 0755), (root_ / "a") + " belongs to uid 1234");
  }
}

TEST_F(discover_files, programs_must_be_executable) {
  put_file(root_ / "usr/bin/nvidia-smi", "", 0644);
  put_file(root_ / "opt/nvidia/bin/nvidia-imex", "", 0755);
  const auto programs = find_programs(view());
  ASSERT_EQ(programs.mounts.size(), 1U);
  EXPECT_EQ(programs.mounts[0].container_path, "/usr/bin/nvidia-imex");
  ASSERT_EQ(programs.missing.size(), 1U);
  EXPECT_THAT(programs.missing[0].names, Contains("nvidia-smi"));
  EXPECT_THAT(programs.missing[0].names, Not(Contains("nvidia-imex")));
}

TEST_F(discover_files, firmware_path_of_kernel_is_searched) {
  library("/usr/lib64/libcuda.so.550.54.15");
  put_file(root_ / "srv/fw/nvidia/550.54.15/gsp_ga10x.bin", "");
  put_file(root_ / "srv/fw/nvidia/550.54.15/other.bin", "");
  const auto driver = find_driver(view(), {});
  EXPECT_THAT(find_firmware(view(), driver, "").missing,
              ElementsAre(missing_items{"firmware files", {"nvidia/550.54.15/gsp*.bin"}}));
  const auto found = find_firmware(view(), driver, "/srv/fw");
  ASSERT_EQ(found.mounts.size(), 1U);
  EXPECT_EQ(found.mounts[0].container_path, "/srv/fw/nvidia/550.54.15/gsp_ga10x.bin");
}

TEST(kernel_module, its_version_is_read) {
  EXPECT_EQ(kernel_module_version(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56"),
            "550.54.15");
  EXPECT_EQ(kernel_module_version(""), "");
}

TEST(hooks, arguments_follow_program_and_environment_is_fixed) {
  cdi::edits edits;
  hook_maker("/usr/bin/gpushm", {}).add(edits, "update-ldcache", {"--folder", "/lib"});
  hook_maker("/opt/nvidia-ctk", {}).add(edits, "update-ldcache", {});
  hook_maker("/opt/nvidia-cdi-hook", {}).add(edits, "update-ldcache", {});
  hook_maker("/usr/bin/gpushm", {"all"}).add(edits, "update-ldcache", {});
  hook_maker("/usr/bin/gpushm", {"update-ldcache"}).add(edits, "update-ldcache", {});
  hook_maker("/usr/bin/gpushm", {}).add_each(edits, "create-symlinks", "--link", {});
  ASSERT_EQ(edits.hooks.size(), 3U);
  EXPECT_THAT(edits.hooks[0].args,
              ElementsAre("gpushm", "cdi", "hook", "update-ldcache", "--folder", "/lib"));
  EXPECT_THAT(edits.hooks[1].args, ElementsAre("nvidia-ctk", "hook", "update-ldcache"));
  EXPECT_THAT(edits.hooks[2].args, ElementsAre("nvidia-cdi-hook", "update-ldcache"));
  for (const cdi::hook& hook : edits.hooks) {
    EXPECT_EQ(hook.name, "createContainer");
    EXPECT_THAT(hook.env, ElementsAre("PATH=/usr/sbin:/usr/bin:/sbin:/bin"));
  }
}

}  // namespace
}  // namespace gpushm::discover
