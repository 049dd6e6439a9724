// SPDX-License-Identifier: Apache-2.0
// The root of a container whose image is hostile: whatever its links say, hooks stay inside. The
// kernel's way of following paths and our own are held to the same.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "cdi/hook_root.hpp"
#include "discover/driver_tree.hpp"
#include "gpushm/error.hpp"
#include "process/temp_dir.hpp"

namespace gpushm::cli {
namespace {

namespace fs = std::filesystem;
using gpushm_tests::put_file;
using gpushm_tests::put_link;

class hook_root : public ::testing::TestWithParam<container_root::resolution> {
 protected:
  hook_root() { fs::create_directories(all_ / "root"); }
  [[nodiscard]] std::string inside(const std::string& path) const { return (all_ / "root") + path; }
  [[nodiscard]] container_root open() const { return container_root(all_ / "root", GetParam()); }
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

INSTANTIATE_TEST_SUITE_P(both,
                         hook_root,
                         ::testing::Values(container_root::resolution::best,
                                           container_root::resolution::by_parts),
                         [](const auto& each) {
                           return each.param == container_root::resolution::best ? "best"
                                                                                 : "by_parts";
                         });

TEST_P(hook_root, files_inside_are_read_through_links) {
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

TEST_P(hook_root, nothing_outside_is_read) {
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

TEST_P(hook_root, what_is_written_stays_inside) {
  put_link(inside("/etc/ld.so.conf.d"), all_ / "outside");
  put_link(inside("/lib"), "../outside");
  put_link(inside("/usr/lib"), "/../../outside");
  put_link(inside("/one"), all_ / "outside/secret");
  const container_root root = open();
  for (const char* directory : {"/etc/ld.so.conf.d", "/lib/x", "/usr/lib/y"}) {
    // Where the link leads inside there is nothing, or a directory is made there.
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

TEST_P(hook_root, directories_are_made_inside) {
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

TEST_P(hook_root, a_written_file_is_complete_and_readable_by_all) {
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

TEST_P(hook_root, a_pipe_does_not_block) {
  ASSERT_EQ(::mkfifo(inside("/pipe").c_str(), 0666), 0);
  EXPECT_EQ(open().read("/pipe"), std::nullopt);
}

TEST(hook_root_itself, has_to_be_a_directory) {
  try {
    const container_root root("/no/such/root");
    FAIL() << "it was opened";
  } catch (const error& failure) {
    EXPECT_EQ(std::string(failure.what()),
              "open the container's root \"/no/such/root\": open: No such file or directory "
              "(ENOENT) (check the path)");
  }
}

TEST(temporary_name, is_never_the_same) {
  EXPECT_NE(temporary_name("x"), temporary_name("x"));
  EXPECT_TRUE(temporary_name("x").starts_with(".x-"));
}

}  // namespace
}  // namespace gpushm::cli
