// SPDX-License-Identifier: Apache-2.0
#include "base/files/directory_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

namespace fs = std::filesystem;
using gpushm::base::directory_watch;
using gpushm_testing::deadline_after;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

class watched_directory : public ::testing::Test {
 protected:
  watched_directory() { fs::create_directories(path("a/b")); }
  [[nodiscard]] std::string path(const std::string& name) const { return scratch_ / name; }
  void write(const std::string& name) const { std::ofstream(path(name)) << "x"; }
  /// "NAME in DIRECTORY", "created NAME in DIRECTORY", "all of DIRECTORY".
  std::vector<std::string> taken(directory_watch& watch) const {
    std::vector<std::string> texts;
    const bool any = watch.take([&](const directory_watch::change& change) {
      const std::string where =
          fs::path(change.directory).lexically_relative(scratch_.path()).string();
      std::string text(change.created ? "created " : "");
      texts.push_back(change.whole ? std::string("all of ").append(where)
                                   : text.append(change.name).append(" in ").append(where));
    });
    EXPECT_EQ(any, !texts.empty());
    return texts;
  }

  gpushm_testing::temp_dir scratch_;
};

TEST_F(watched_directory, entries_of_the_directory_are_reported) {
  directory_watch watch("watch");
  watch.set_directories({path("a/b")});
  EXPECT_THAT(taken(watch), IsEmpty());  // other programs write in /tmp meanwhile
  write("a/b/file");
  ASSERT_TRUE(watch.wait_until(deadline_after(seconds(20))));
  const auto written = taken(watch);
  EXPECT_THAT(written, Contains("created file in a/b"));
  EXPECT_THAT(written, Contains("file in a/b"));
  write("a/beside");
  EXPECT_THAT(taken(watch), IsEmpty());
  fs::remove(path("a/b/file"));
  EXPECT_THAT(taken(watch), Contains("file in a/b"));
}

TEST_F(watched_directory, moved_and_recreated_directory_is_followed) {
  directory_watch watch("watch");
  watch.set_directories({path("a/b")});
  fs::rename(path("a"), path("aside"));
  EXPECT_THAT(taken(watch), Contains("all of a/b"));
  write("aside/b/file");
  EXPECT_THAT(taken(watch), IsEmpty());
  fs::create_directories(path("a"));
  EXPECT_THAT(taken(watch), Contains("all of a/b"));
  fs::create_directories(path("a/b"));
  EXPECT_THAT(taken(watch), Contains("all of a/b"));
  write("a/b/file");
  EXPECT_THAT(taken(watch), Contains("created file in a/b"));
}

TEST_F(watched_directory, parent_of_watched_directory_is_distinguished) {
  directory_watch watch("watch");
  watch.set_directories({path("a"), path("a/b")});
  write("a/b/file");
  EXPECT_THAT(taken(watch), Not(Contains("created file in a")));
  write("a/file");
  const auto above = taken(watch);
  EXPECT_THAT(above, Contains("created file in a"));
  EXPECT_THAT(above, Not(Contains("all of a/b")));
  fs::remove_all(path("a/b"));
  const auto gone = taken(watch);
  EXPECT_THAT(gone, Contains("b in a"));
  EXPECT_THAT(gone, Contains("all of a/b"));
}

TEST_F(watched_directory, changes_are_reported_under_every_name) {
  fs::create_directory_symlink(path("a/b"), path("link"));
  directory_watch watch("watch");
  watch.set_directories({path("a/b"), path("link")});
  write("a/b/file");
  const auto both = taken(watch);
  EXPECT_THAT(both, Contains("created file in a/b"));
  EXPECT_THAT(both, Contains("created file in link"));
}

TEST_F(watched_directory, replaced_directories_are_no_longer_watched) {
  fs::create_directories(path("other"));
  directory_watch watch("watch");
  watch.set_directories({path("a/b")});
  watch.set_directories({path("other")});
  write("a/b/file");
  EXPECT_THAT(taken(watch), IsEmpty());
  write("other/file");
  EXPECT_THAT(taken(watch), Contains("created file in other"));
}

TEST_F(watched_directory, lost_events_are_reported) {
  directory_watch watch("watch");
  watch.set_directories({path("a/b")});
  std::ifstream limit("/proc/sys/fs/inotify/max_queued_events");
  int queued = 0;
  limit >> queued;
  if (queued <= 0 || queued > 100'000) {
    GTEST_SKIP() << "the queue of events is too long to fill: " << queued;
  }
  for (int number = 0; number <= queued / 2; ++number) {
    // Two events, which differ from those before.
    const std::string name = path("a/b/").append(std::to_string(number % 7));
    write("a/b/" + std::to_string(number % 7));
    fs::remove(name);
  }
  EXPECT_THAT(taken(watch), Contains("all of "));
  write("a/b/after");
  EXPECT_THAT(taken(watch), Contains("created after in a/b"));
}

}  // namespace
}  // namespace gpushm_tests
