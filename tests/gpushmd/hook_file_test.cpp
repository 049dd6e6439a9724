// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/hook_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/gpushmd/settings.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::agent {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

ino_t inode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_ino;
}

TEST(agent_hook_file, is_installed_on_the_host) {
  const gpushm_testing::temp_dir folder;
  std::ofstream(folder / "hook") << "program";
  const std::string path = install_hook(folder / "hook", folder / "plugins/gpushm.dev");
  EXPECT_EQ(path, folder / "plugins/gpushm.dev/gpushm-cdi-hook");
  EXPECT_EQ(content_of(path), "program");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0755U);
}

TEST(agent_hook_file, same_file_is_kept_and_other_is_replaced) {
  const gpushm_testing::temp_dir folder;
  std::ofstream(folder / "hook") << "one";
  const std::string path = install_hook(folder / "hook", folder / "p");
  const ino_t first = inode_of(path);
  EXPECT_EQ(inode_of(install_hook(folder / "hook", folder / "p")), first);
  std::ofstream(folder / "hook") << "two";
  // A process may be running the old program: its file must not change.
  const std::ifstream running(path);
  EXPECT_NE(inode_of(install_hook(folder / "hook", folder / "p")), first);
  EXPECT_EQ(content_of(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "p"), {}), 1);
}

TEST(agent_hook_file, mode_is_fixed_and_temporary_files_are_removed) {
  const gpushm_testing::temp_dir folder;
  std::ofstream(folder / "hook") << "program";
  const std::string path = install_hook(folder / "hook", folder / "p");
  struct stat status {};
  for (const mode_t wrong : {0600U, 0777U, 04755U}) {
    ASSERT_EQ(::chmod(path.c_str(), wrong), 0);
    static_cast<void>(install_hook(folder / "hook", folder / "p"));
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0755U);
  }
  std::ofstream(folder / "p/gpushm-cdi-hook.tmp.a1B2c3") << "pro";
  std::ofstream(folder / "p/checkpoint.tmp.a1B2c3") << "another's";
  static_cast<void>(install_hook(folder / "hook", folder / "p"));
  EXPECT_FALSE(std::filesystem::exists(folder / "p/gpushm-cdi-hook.tmp.a1B2c3"));
  EXPECT_TRUE(std::filesystem::exists(folder / "p/checkpoint.tmp.a1B2c3"));
}

TEST(agent_ipc_files, are_installed_for_containers_of_every_user) {
  const gpushm_testing::temp_dir folder;
  std::ofstream(folder / "libgpushm-ipc.so") << "preloaded";
  std::ofstream(folder / "libgpushm.so.1") << "client";
  std::ofstream(folder / "gpushm-cdi-hook") << "hook";
  settings chosen;
  chosen.state_dir = folder / "state";
  chosen.ipc_source = folder.path();
  chosen.hook_source = folder / "gpushm-cdi-hook";
  const mode_t mask = ::umask(077);
  const auto files = install_ipc(chosen);
  ::umask(mask);
  ASSERT_TRUE(files);
  EXPECT_EQ(files->libraries, folder / "state/ipc");
  EXPECT_EQ(files->hook_program, folder / "state/gpushm-cdi-hook");
  EXPECT_EQ(content_of(folder / "state/ipc/libgpushm-ipc.so"), "preloaded");
  EXPECT_EQ(content_of(folder / "state/ipc/libgpushm.so.1"), "client");
  struct stat status {};
  for (const char* const each : {"state/ipc", "state/ipc/libgpushm.so.1"}) {
    ASSERT_EQ(::stat((folder / each).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0755U) << each;
  }
  // A running program maps the old file.
  const ino_t first = inode_of(folder / "state/ipc/libgpushm-ipc.so");
  std::ofstream(folder / "libgpushm-ipc.so") << "newer";
  static_cast<void>(install_ipc(chosen));
  EXPECT_NE(inode_of(folder / "state/ipc/libgpushm-ipc.so"), first);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "state/ipc"), {}), 2);
}

TEST(agent_ipc_files, missing_source_is_not_an_obstacle) {
  const gpushm_testing::temp_dir folder;
  settings chosen;
  chosen.state_dir = folder / "state";
  chosen.ipc_source = folder / "nothing";
  EXPECT_EQ(install_ipc(chosen), std::nullopt);
  try {
    static_cast<void>(install_ipc_libraries(folder / "nothing", folder / "state/ipc"));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_EQ(why.next_step(), "name the directory of both libraries: --ipc-source DIR");
  }
}

TEST(agent_hook_file, missing_program_is_reported) {
  const gpushm_testing::temp_dir folder;
  try {
    static_cast<void>(install_hook("/nonexistent/hook", folder / "p"));
    FAIL() << "no error";
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "install the hook program \"/nonexistent/hook\": the file is unreadable or empty "
                 "(name the path of gpushm-cdi-hook: --hook-source FILE)");
  }
}

}  // namespace
}  // namespace gpushm::agent
