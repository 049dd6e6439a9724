// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/near_match.hpp"

namespace gpushm::core {
namespace {

std::string hint(std::string_view wanted, std::initializer_list<const char*> candidates) {
  near_match match(wanted);
  for (const char* each : candidates) {
    if (!match.consider(each)) {
      break;
    }
  }
  return std::string(match.best());
}

TEST(near_match, finds_the_nearest_of_several) {
  EXPECT_EQ(hint("w/llama", {"kv/0", "w/llama22", "w/llama2", "w/lla"}), "w/llama2");
  EXPECT_EQ(hint("w/llama", {"w/lalma"}), "w/lalma");
  EXPECT_EQ(hint("w/llama", {"w/lama2", "w/other", "kv"}), "w/lama2");
}

TEST(near_match, has_nothing_when_nothing_is_near) {
  EXPECT_EQ(hint("w/llama", {}), "");
  EXPECT_EQ(hint("w/llama", {"something", "w/l", ""}), "");
  EXPECT_EQ(hint("ab", {"cd"}), "") << "a name of two bytes may differ in one";
  EXPECT_EQ(hint("ab", {"ac"}), "ac");
  EXPECT_EQ(hint("abcdef", {"abcxyz"}), "") << "six bytes may differ in two";
  EXPECT_EQ(hint("abcdef", {"abcdyz"}), "abcdyz");
  EXPECT_EQ(hint(std::string(200, 'a'), {std::string(204, 'a').c_str()}), "") << "at most three";
}

TEST(near_match, stops_at_the_first_that_differs_in_one) {
  near_match match("llama");
  EXPECT_TRUE(match.consider("alpaca"));
  EXPECT_FALSE(match.consider("llamas"));
  EXPECT_EQ(match.best(), "llamas");
}

TEST(near_match, looks_at_a_bounded_number_of_names) {
  near_match match("llama");
  int looked_at = 0;
  while (match.consider("something else")) {
    ASSERT_LT(++looked_at, 100'000);
  }
  EXPECT_LE(looked_at, 1'000);
}

}  // namespace
}  // namespace gpushm::core
