// SPDX-License-Identifier: Apache-2.0
#include "base/files/file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm::base {
namespace {

class read_file : public ::testing::Test {
 protected:
  [[nodiscard]] std::string write(const std::string& text) const {
    std::ofstream(directory_ / "file", std::ios::binary) << text;
    return directory_ / "file";
  }
  gpushm_testing::temp_dir directory_;
};

TEST_F(read_file, returns_content_up_to_limit) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) {
    text += std::to_string(i) + '\n';
  }
  const std::string path = write(text);
  EXPECT_EQ(read_small_file(path, text.size()), text);
  EXPECT_EQ(read_small_file(path, text.size() + 1), text);
  EXPECT_EQ(read_small_file(path), text.substr(0, 65'536));
  EXPECT_EQ(read_small_file(path, 16'385), text.substr(0, 16'385));
  EXPECT_EQ(read_small_file(path, 1), "0");
  EXPECT_EQ(read_small_file(path, 0), "");
  EXPECT_EQ(read_small_file(write("")), "");
  EXPECT_EQ(read_small_file(directory_ / "none"), std::nullopt);
  EXPECT_EQ(read_small_file(directory_.path()), std::nullopt);
}

TEST_F(read_file, allocates_only_file_size) {
  const std::string path = write("text");
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(read_small_file(path, std::size_t{1} << 30U), "text");
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64L << 10U);  // KiB
  EXPECT_EQ(read_small_file(path, std::numeric_limits<std::size_t>::max() / 4), "text");
}

}  // namespace
}  // namespace gpushm::base
