// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/near_match.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace gpushm::cli {
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

TEST(near_match, finds_nearest_candidate) {
  EXPECT_EQ(hint("w/llama", {"kv/0", "w/llama22", "w/llama2", "w/lla"}), "w/llama2");
  EXPECT_EQ(hint("w/llama", {"w/lalma"}), "w/lalma");
  EXPECT_EQ(hint("w/llama", {"w/lama2", "w/other", "kv"}), "w/lama2");
}

TEST(near_match, empty_without_near_match) {
  EXPECT_EQ(hint("w/llama", {}), "");
  EXPECT_EQ(hint("w/llama", {"something", "w/l", ""}), "");
  EXPECT_EQ(hint("ab", {"cd"}), "") << "maximum edit distance of two bytes: 1";
  EXPECT_EQ(hint("ab", {"ac"}), "ac");
  EXPECT_EQ(hint("abcdef", {"abcxyz"}), "") << "maximum edit distance of six bytes: 2";
  EXPECT_EQ(hint("abcdef", {"abcdyz"}), "abcdyz");
  EXPECT_EQ(hint(std::string(200, 'a'), {std::string(204, 'a').c_str()}), "")
      << "maximum edit distance: 3";
}

TEST(near_match, stops_at_edit_distance_1) {
  near_match match("llama");
  EXPECT_TRUE(match.consider("alpaca"));
  EXPECT_FALSE(match.consider("llamas"));
  EXPECT_EQ(match.best(), "llamas");
}

TEST(near_match, number_of_candidates_is_bounded) {
  near_match match("llama");
  int considered = 1;
  while (match.consider("another")) {
    ++considered;
  }
  EXPECT_EQ(considered, 10'000);
}

TEST(near_match, other_errors_are_unchanged) {
  const error failure(errc::timed_out, "open", "w/lama", "too late", "try again");
  connection_arguments nowhere;
  nowhere.socket = "/nonexistent/socket";
  EXPECT_STREQ(with_near_match(failure, nowhere, "w/lama").what(), failure.what());
  const error missing(errc::no_such_segment, "open", "w/lama", "no such segment", "look");
  EXPECT_STREQ(with_near_match(missing, nowhere, "w/lama").what(), missing.what())
      << "without a broker the error is unchanged";
}

}  // namespace
}  // namespace gpushm::cli
