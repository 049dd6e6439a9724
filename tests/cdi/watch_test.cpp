// SPDX-License-Identifier: Apache-2.0
// Changes that a watch of CDI directories reports or ignores.
#include "containers/cdi/registry/watch.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/cdi/world.hpp"

namespace gpushm_tests {
namespace {

namespace cdi = gpushm::cdi;
namespace fs = std::filesystem;

// A long timeout for expected changes, a short one for none.
constexpr std::chrono::seconds timeout{20};
constexpr std::chrono::milliseconds moment{150};

class cdi_watch : public testing::Test {
 protected:
  cdi_watch() { fs::create_directories(scratch_.path("run/cdi")); }
  [[nodiscard]] cdi::registry_watch watch() const {
    return cdi::registry_watch({scratch_.path("run/cdi")});
  }
  scratch_directory scratch_;
};

TEST_F(cdi_watch, no_change_reports_nothing) {
  auto watch = this->watch();
  EXPECT_FALSE(watch.wait(moment));
  EXPECT_FALSE(watch.changed());
}

TEST_F(cdi_watch, reports_files_written_renamed_and_removed) {
  auto watch = this->watch();
  scratch_.write("run/cdi/a.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("run/cdi/b.tmp", "x");
  EXPECT_FALSE(watch.wait(moment));
  fs::rename(scratch_.path("run/cdi/b.tmp"), scratch_.path("run/cdi/b.json"));
  EXPECT_TRUE(watch.wait(timeout));
  fs::rename(scratch_.path("run/cdi/b.json"), scratch_.path("run/cdi/b.tmp"));
  EXPECT_TRUE(watch.wait(timeout));
  fs::remove(scratch_.path("run/cdi/a.yaml"));
  EXPECT_TRUE(watch.wait(timeout));
  fs::create_symlink("nothing", scratch_.path("run/cdi/c.yaml"));
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("run/cdi/sub/d.yaml", "x");
  EXPECT_FALSE(watch.wait(moment));
}

TEST_F(cdi_watch, waits_for_the_end_of_writing) {
  auto watch = this->watch();
  {
    std::ofstream file(scratch_.path("run/cdi/a.yaml"));
    file << "half" << std::flush;
    EXPECT_FALSE(watch.wait(moment));
    file << "whole";
  }
  EXPECT_TRUE(watch.wait(timeout));
}

TEST_F(cdi_watch, coalesces_many_changes) {
  auto watch = this->watch();
  for (int index = 0; index < 200; ++index) {
    scratch_.write("run/cdi/" + std::to_string(index) + ".yaml", "x");
  }
  EXPECT_TRUE(watch.wait(timeout));
  EXPECT_FALSE(watch.wait(moment));
}

TEST_F(cdi_watch, follows_created_and_removed_directories) {
  fs::remove_all(scratch_.path("run"));
  auto watch = this->watch();
  fs::create_directory(scratch_.path("run"));
  EXPECT_TRUE(watch.wait(timeout));
  fs::create_directory(scratch_.path("run/cdi"));
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("run/cdi/a.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  fs::rename(scratch_.path("run"), scratch_.path("old"));
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("old/cdi/a.yaml", "y");
  EXPECT_FALSE(watch.wait(moment));
  scratch_.write("run/cdi/b.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("run/cdi/c.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  fs::remove_all(scratch_.path("run"));
  EXPECT_TRUE(watch.wait(timeout));
  EXPECT_FALSE(watch.wait(moment));
}

TEST_F(cdi_watch, follows_link_in_path) {
  fs::rename(scratch_.path("run"), scratch_.path("real"));
  fs::create_directories(scratch_.path("other/cdi"));
  fs::create_directory_symlink("real", scratch_.path("run"));
  auto watch = this->watch();
  scratch_.write("real/cdi/a.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  fs::create_directory_symlink("other", scratch_.path("new"));
  fs::rename(scratch_.path("new"), scratch_.path("run"));
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("other/cdi/a.yaml", "x");
  EXPECT_TRUE(watch.wait(timeout));
  scratch_.write("real/cdi/b.yaml", "x");
  EXPECT_FALSE(watch.wait(moment));
}

TEST_F(cdi_watch, wakes_waiting_thread) {
  auto watch = this->watch();
  const std::jthread writer([this] { scratch_.write("run/cdi/a.yaml", "x"); });
  EXPECT_TRUE(watch.wait(timeout));
}

}  // namespace
}  // namespace gpushm_tests
