// SPDX-License-Identifier: Apache-2.0
// The root of a container whose image is hostile: hooks stay inside, whatever its links.

#include "containers/hook/root.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "containers/hook/sandbox.hpp"
#include "gpushm/error.hpp"
#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::hook {
namespace {

namespace fs = std::filesystem;
using gpushm_tests::put_file;
using gpushm_tests::put_link;

class hook_root : public ::testing::Test {
 protected:
  hook_root() { fs::create_directories(all_ / "root"); }
  [[nodiscard]] std::string inside(const std::string& path) const { return (all_ / "root") + path; }
  [[nodiscard]] container_root open() const { return container_root(all_ / "root"); }
  [[nodiscard]] bool outside_untouched() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& each : fs::recursive_directory_iterator(all_ / "outside")) {
      ++count;
    }
    return count == 1 && fs::file_size(all_ / "outside/secret") == 6;
  }
  void SetUp() override { put_file(all_ / "outside/secret", "secret"); }

  gpushm_testing::temp_dir all_;
};

TEST_F(hook_root, files_inside_are_read_through_links) {
  put_file(inside("/etc/target"), "text");
  put_link(inside("/absolute"), "/etc/target");
  put_link(inside("/far"), "../../../../../etc/target");
  put_link(inside("/etc/again"), "../absolute");
  const container_root root = open();
  for (const char* path : {"/etc/target",
                           "etc/target",
                           "/absolute",
                           "/far",
                           "/etc/again",
                           "/etc/../etc/./target",
                           "/../../etc/target"}) {
    EXPECT_EQ(root.read(path), "text") << path;
  }
  EXPECT_EQ(root.read("/none"), std::nullopt);
  EXPECT_EQ(root.read("/etc"), std::nullopt);
  EXPECT_EQ(root.read("/etc/target/x"), std::nullopt);
}

TEST_F(hook_root, nothing_outside_is_read) {
  const std::string secret = all_ / "outside/secret";
  put_link(inside("/a"), secret);
  put_link(inside("/b"), "../outside/secret");
  put_link(inside("/c"), "/../outside");
  put_link(inside("/d"), "/proc/self/root" + secret);
  put_link(inside("/e"), "e");
  put_link(inside("/f"), "..");
  const container_root root = open();
  for (const char* path : {"/a",
                           "/b",
                           "/c/secret",
                           "/d",
                           "/e",
                           "/f/outside/secret",
                           "/../outside/secret",
                           "/f/../../outside/secret"}) {
    EXPECT_EQ(root.read(path), std::nullopt) << path;
  }
}

TEST_F(hook_root, writes_stay_inside) {
  put_link(inside("/etc/ld.so.conf.d"), all_ / "outside");
  put_link(inside("/lib"), "../outside");
  put_link(inside("/usr/lib"), "/../../outside");
  put_link(inside("/one"), all_ / "outside/secret");
  const container_root root = open();
  for (const char* directory : {"/etc/ld.so.conf.d", "/lib/x", "/usr/lib/y"}) {
    // The link's target inside the root does not exist, or a directory is created there.
    try {
      root.write(directory, "name", "text");
    } catch (const error&) {
    }
  }
  root.write("/", "one", "replaced");
  EXPECT_EQ(root.read("/one"), "replaced");
  EXPECT_FALSE(fs::is_symlink(inside("/one")));
  EXPECT_TRUE(outside_untouched());
}

TEST_F(hook_root, directories_are_created_inside) {
  put_link(inside("/lib"), "usr/lib");
  fs::create_directories(inside("/usr/lib"));
  put_link(inside("/dangling"), "/nowhere");
  put_file(inside("/file"), "");
  const container_root root = open();
  EXPECT_TRUE(root.make_directory("/lib/x86_64-linux-gnu/gbm"));
  EXPECT_TRUE(fs::is_directory(inside("/usr/lib/x86_64-linux-gnu/gbm")));
  EXPECT_THROW(static_cast<void>(root.make_directory("/dangling")), error);
  EXPECT_THROW(static_cast<void>(root.make_directory("/file/x")), error);
  EXPECT_TRUE(outside_untouched());
}

TEST_F(hook_root, a_written_file_is_complete_and_readable_by_all) {
  const container_root root = open();
  const mode_t before = ::umask(0077);
  root.write("/etc/ld.so.conf.d", "x.conf", "first");
  root.write("/etc/ld.so.conf.d", "x.conf", "second");
  ::umask(before);
  EXPECT_EQ(root.read("/etc/ld.so.conf.d/x.conf"), "second");
  struct stat about {};
  ASSERT_EQ(::stat(inside("/etc/ld.so.conf.d/x.conf").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777U, 0644U);
  EXPECT_EQ(std::distance(fs::directory_iterator(inside("/etc/ld.so.conf.d")), {}), 1);
}

TEST_F(hook_root, a_pipe_does_not_block) {
  ASSERT_EQ(::mkfifo(inside("/pipe").c_str(), 0666), 0);
  EXPECT_EQ(open().read("/pipe"), std::nullopt);
}

TEST_F(hook_root, other_mounts_are_not_entered_but_dev_is) {
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    GTEST_SKIP() << "this process may not mount";
  }
  for (const char* place : {"/data", "/dev", "/dev/shm", "/etc"}) {
    fs::create_directories(inside(place));
  }
  put_file(inside("/data.conf"), "below");
  put_file(all_ / "host.conf", "volume");
  ASSERT_EQ(::mount("x", inside("/data").c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(::mount("x", inside("/dev").c_str(), "tmpfs", 0, nullptr), 0);
  fs::create_directories(inside("/dev/shm"));
  ASSERT_EQ(::mount("x", inside("/dev/shm").c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(
      ::mount(
          (all_ / "host.conf").c_str(), inside("/data.conf").c_str(), nullptr, MS_BIND, nullptr),
      0);
  put_link(inside("/etc/ld.so.conf.d"), "/data");
  put_link(inside("/devices"), "/dev");
  const container_root root = open();
  for (const char* directory : {"/data", "/etc/ld.so.conf.d", "/dev/shm", "/devices"}) {
    EXPECT_FALSE(root.open(directory, O_PATH)) << directory;
    EXPECT_THROW(root.write(directory, "name", "text"), error) << directory;
  }
  EXPECT_EQ(root.read("/data.conf"), std::nullopt);
  root.write("/dev/dri/by-path", "name", "text");
  EXPECT_EQ(root.read("/dev/dri/by-path/name"), "text");
  for (const char* place : {"/data.conf", "/dev/shm", "/dev", "/data"}) {
    EXPECT_EQ(::umount2(inside(place).c_str(), MNT_DETACH), 0);
  }
}

TEST_F(hook_root, devices_of_an_image_are_not_opened) {
  // A device without a driver: open fails with ENXIO, stat does not.
  if (::mknod(inside("/device").c_str(), S_IFCHR | 0666U, makedev(240, 250)) != 0) {
    GTEST_SKIP() << "this process may not create device nodes";
  }
  const container_root root = open();
  errno = 0;
  EXPECT_EQ(root.read("/device"), std::nullopt);
  EXPECT_EQ(errno, 0);
}

// ---- what ldconfig must not see ----

std::string mounts() {
  return "21 1 0:20 / / rw - ext4 /dev/vda rw\n"
         "22 21 0:21 / /proc rw,nosuid shared:3 - proc proc rw\n"
         "30 21 0:30 / /b/rootfs ro - overlay overlay ro\n"
         "40 30 0:30 / /b/rootfs ro - overlay overlay ro,lowerdir=/a\\040-\\040proc\n"
         "41 40 0:31 / /b/rootfs/proc ro - proc proc ro\n"
         "42 41 0:31 /sys /b/rootfs/proc/sys ro - proc proc ro\n"
         "43 40 0:32 / /b/rootfs/dev ro - tmpfs proc ro\n"
         "45 44 0:34 / /b/rootfs/sys/fs/cgroup ro - cgroup2 none ro\n"
         "44 40 0:33 / /b/rootfs/sys ro - sysfs sysfs ro\n"
         "46 45 0:31 / /b/rootfs/with\\040blank\\134040\\012 ro master:1 propagate_from:2 - proc - "
         "ro\n";
}

TEST(kernel_file_mounts, are_found_only_below_the_root) {
  EXPECT_THAT(
      kernel_file_mounts(mounts(), 40),
      ::testing::UnorderedElementsAre(
          "/b/rootfs/proc", "/b/rootfs/proc/sys", "/b/rootfs/sys", "/b/rootfs/with blank\\040\n"));
  EXPECT_THAT(kernel_file_mounts(mounts(), 43), ::testing::IsEmpty());
  EXPECT_THAT(kernel_file_mounts(mounts(), 42), ::testing::ElementsAre("/b/rootfs/proc/sys"));
}

TEST(kernel_file_mounts, malformed_list_is_rejected) {
  for (const char* text : {"x\n",
                           "21 1 0:20 / / rw ext4 /dev/vda rw\n",
                           "21 1 0:20 / / rw -\n",
                           "x 1 0:20 / / rw - proc proc rw\n"}) {
    EXPECT_THROW(static_cast<void>(kernel_file_mounts(text, 21)), error) << text;
  }
}

TEST(hook_root_itself, must_be_a_directory) {
  try {
    const container_root root("/no/such/root");
    FAIL() << "it was opened";
  } catch (const error& failure) {
    EXPECT_EQ(std::string(failure.what()),
              "open the container's root \"/no/such/root\": open: No such file or directory "
              "(ENOENT) (check the path)");
  }
}

TEST(temporary_name, is_unique) {
  EXPECT_NE(temporary_name("x"), temporary_name("x"));
  EXPECT_TRUE(temporary_name("x").starts_with(".x-"));
}

}  // namespace
}  // namespace gpushm::hook
