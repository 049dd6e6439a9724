// SPDX-License-Identifier: Apache-2.0
// When an agent starts again: another driver, or GPUs that are to be released.
#include "apps/gpushmd/node_changes.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::agent::node_changes;
using ::testing::EndsWith;
using ::testing::StartsWith;
using namespace std::chrono_literals;

constexpr const char* other_driver = "the driver of this node has changed";

/// A file of this machine's architecture: the dynamic linker of this process.
std::string any_library() {
  Dl_info found{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel passes an address as a number
  const auto* const linker = reinterpret_cast<const void*>(::getauxval(AT_BASE));
  return ::dladdr(linker, &found) != 0 ? found.dli_fname : "/proc/self/exe";
}

class agent_node_changes : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "proc/driver/nvidia");
    fs::create_directories(folder_ / "state");
    fs::create_directories(root_);
    chosen_.driver_root = root_;
    chosen_.proc_root = folder_ / "proc";
    chosen_.state_dir = folder_ / "state";
  }
  void load(const std::string& version) {
    std::ofstream(folder_ / "proc/driver/nvidia/version") << version;
  }
  /// A tree with the driver's libraries.
  void build(const std::string& version) {
    const std::string libraries = folder_ / (version + "/usr/lib/x86_64-linux-gnu");
    fs::create_directories(libraries);
    for (const std::string name : {"libcuda.so.", "libnvidia-ml.so."}) {
      fs::copy_file(any_library(), libraries + "/" + name + version);
      fs::create_symlink(name + version, libraries + "/" + name + "1");
    }
  }
  /// Renames such a tree to the root, as a mount appears.
  void install(const std::string& version) {
    build(version);
    if (fs::exists(root_)) {
      fs::rename(root_, folder_ / ("before-" + version));
    }
    fs::rename(folder_ / version, root_);
  }
  /// The results of two readings.
  std::pair<std::string, std::string> next_two(node_changes& changes) {
    std::string first = changes.next(now_ += 2s);
    return {std::move(first), changes.next(now_ += 2s)};
  }

  gpushm_testing::temp_dir folder_;
  std::string root_ = folder_ / "driver";
  gpushm::agent::settings chosen_;
  std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
};

TEST_F(agent_node_changes, unchanged_driver_is_none) {
  install("580.82.07");
  load("580.82.07");
  node_changes one(chosen_);
  EXPECT_FALSE(one.released());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(one.next(now_ += 2s), "");
  }
}

TEST_F(agent_node_changes, driver_counts_once_it_is_installed) {
  const auto changed = std::pair<std::string, std::string>("", other_driver);
  {
    node_changes one(chosen_);
    install("580.82.07");
    EXPECT_EQ(next_two(one), changed);
  }
  {
    node_changes one(chosen_);
    install("590.48.01");
    EXPECT_EQ(next_two(one), changed);
  }
  {
    node_changes one(chosen_);
    load("590.48.01");
    EXPECT_EQ(one.next(now_ += 2s), "");
    load("600.10");  // still going on
    EXPECT_EQ(next_two(one), changed);
  }
  {
    node_changes one(chosen_);
    fs::rename(root_, folder_ / "away");
    EXPECT_EQ(next_two(one), changed);
  }
  {
    node_changes one(chosen_);
    fs::rename(folder_ / "away", root_);
    EXPECT_EQ(next_two(one), changed);
  }
}

TEST_F(agent_node_changes, library_in_an_unchanged_root_is_found) {
  // As a package that is installed into "/".
  node_changes one(chosen_);
  EXPECT_EQ(one.next(now_ += 2s), "");
  build("580.82.07");
  fs::rename(folder_ / "580.82.07/usr", root_ + "/usr");
  std::string found;
  for (int round = 0; round < 10 && found.empty(); ++round) {
    found = one.next(now_ += 2s);
  }
  EXPECT_EQ(found, other_driver);
}

TEST_F(agent_node_changes, short_absence_is_none) {
  install("580.82.07");
  node_changes one(chosen_);
  fs::rename(root_, folder_ / "away");
  EXPECT_EQ(one.next(now_ += 2s), "");
  fs::rename(folder_ / "away", root_);
  EXPECT_EQ(next_two(one), (std::pair<std::string, std::string>("", "")));
}

TEST_F(agent_node_changes, readings_are_limited) {
  node_changes one(chosen_);
  EXPECT_EQ(one.next(now_), "");
  std::ofstream(folder_ / "state/release-gpus").put('\n');
  EXPECT_EQ(one.next(now_ + 500ms), "");
  EXPECT_THAT(one.next(now_ + 1'000ms), StartsWith("the GPUs are to be released: "));
}

TEST_F(agent_node_changes, released_gpus_are_used_again_without_the_file) {
  const std::string file = folder_ / "state/release-gpus";
  std::ofstream(file).put('\n');
  node_changes one(chosen_);
  EXPECT_TRUE(one.released());
  install("580.82.07");  // the reason for the release
  EXPECT_EQ(next_two(one), (std::pair<std::string, std::string>("", "")));
  fs::remove(file);
  EXPECT_THAT(one.next(now_ += 2s), EndsWith("release-gpus is gone"));
  EXPECT_FALSE(node_changes(chosen_).released());
}

/// It watches for lost GPUs.
TEST_F(agent_node_changes, agent_with_only_a_broker_releases_gpus) {
  chosen_.gpus = false;
  node_changes one(chosen_);
  EXPECT_FALSE(one.released());
  std::ofstream(folder_ / "state/release-gpus").put('\n');
  EXPECT_THAT(one.next(now_ += 2s), EndsWith("release-gpus exists"));
  EXPECT_TRUE(node_changes(chosen_).released());
}

TEST_F(agent_node_changes, agent_without_gpus_follows_nothing) {
  chosen_.gpus = false;
  chosen_.broker = false;
  node_changes one(chosen_);
  install("580.82.07");
  std::ofstream(folder_ / "state/release-gpus").put('\n');
  EXPECT_EQ(next_two(one), (std::pair<std::string, std::string>("", "")));
  EXPECT_FALSE(node_changes(chosen_).released());
}

}  // namespace
}  // namespace gpushm_tests
