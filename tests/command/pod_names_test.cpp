// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/node/pod_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::cli {
namespace {

constexpr const char* uid = "0a1b2c3d-0000-4000-8000-112233445566";

class names_of_pods : public testing::Test {
 protected:
  [[nodiscard]] pod_names read(const std::string& text) const {
    std::ofstream(path_) << text;
    return pod_names(path_);
  }
  gpushm_testing::temp_dir directory_;
  const std::string path_ = directory_ / "pods";
};

TEST_F(names_of_pods, are_those_of_the_list) {
  const pod_names names = read(std::string("UID   NS   NAME\n\n") + uid + "  ml   trainer-0 \r\n");
  EXPECT_EQ(names.name_of("pod " + std::string(uid)), "ml/trainer-0");
  EXPECT_EQ(names.text_of("pod " + std::string(uid)), "pod ml/trainer-0");
  EXPECT_EQ(names.name_of("pod other"), "");
  EXPECT_EQ(names.text_of("pod other"), "pod other");
  EXPECT_EQ(names.text_of("uid 0"), "uid 0");
  EXPECT_EQ(pod_names().text_of("pod other"), "pod other");
  EXPECT_EQ(read("").name_of("pod other"), "");
}

TEST_F(names_of_pods, are_in_lines_of_three_words) {
  for (const char* const text : {"a b\n", "a b c d\n", "a b c\nx\n"}) {
    try {
      static_cast<void>(read(text));
      ADD_FAILURE() << text;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::invalid_file) << text;
    }
  }
  EXPECT_THROW(static_cast<void>(pod_names(directory_ / "missing")), error);
  EXPECT_THROW(static_cast<void>(read(std::string(17UL << 20U, 'a'))), error);
}

}  // namespace
}  // namespace gpushm::cli
