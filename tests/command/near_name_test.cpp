// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/near_name.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace gpushm::cli {
namespace {

std::string hint(std::string_view wanted, std::initializer_list<const char*> candidates) {
  near_name match(wanted);
  for (const char* each : candidates) {
    if (!match.consider(each)) {
      break;
    }
  }
  return std::string(match.best());
}

TEST(near_name, finds_the_nearest_of_several) {
  EXPECT_EQ(hint("w/llama", {"kv/0", "w/llama22", "w/llama2", "w/lla"}), "w/llama2");
  EXPECT_EQ(hint("w/llama", {"w/lalma"}), "w/lalma");
  EXPECT_EQ(hint("w/llama", {"w/lama2", "w/other", "kv"}), "w/lama2");
}

TEST(near_name, has_nothing_when_nothing_is_near) {
  EXPECT_EQ(hint("w/llama", {}), "");
  EXPECT_EQ(hint("w/llama", {"something", "w/l", ""}), "");
  EXPECT_EQ(hint("ab", {"cd"}), "") << "a name of two bytes may differ in one";
  EXPECT_EQ(hint("ab", {"ac"}), "ac");
  EXPECT_EQ(hint("abcdef", {"abcxyz"}), "") << "six bytes may differ in two";
  EXPECT_EQ(hint("abcdef", {"abcdyz"}), "abcdyz");
  EXPECT_EQ(hint(std::string(200, 'a'), {std::string(204, 'a').c_str()}), "") << "at most three";
}

TEST(near_name, stops_at_the_first_that_differs_in_one) {
  near_name match("llama");
  EXPECT_TRUE(match.consider("alpaca"));
  EXPECT_FALSE(match.consider("llamas"));
  EXPECT_EQ(match.best(), "llamas");
}

TEST(near_name, looks_at_a_bounded_number_of_names) {
  near_name match("llama");
  int seen = 1;
  while (match.consider("another")) {
    ++seen;
  }
  EXPECT_EQ(seen, 10'000);
}

TEST(near_name, leaves_other_errors_alone) {
  const error failure(errc::timed_out, "open", "w/lama", "too late", "try again");
  connection_arguments nowhere;
  nowhere.socket = "/nonexistent/socket";
  EXPECT_STREQ(with_near_name(failure, nowhere, "w/lama").what(), failure.what());
  const error missing(errc::no_such_segment, "open", "w/lama", "no such segment", "look");
  EXPECT_STREQ(with_near_name(missing, nowhere, "w/lama").what(), missing.what())
      << "no broker answers: the error stays what it was";
}

}  // namespace
}  // namespace gpushm::cli
