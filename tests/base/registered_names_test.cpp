// SPDX-License-Identifier: Apache-2.0
#include "base/segments/registered_names.hpp"

#include <gtest/gtest.h>

#include <string>

namespace gpushm::base {
namespace {

TEST(registered_names, are_those_of_numbers) {
  for (const std::uint32_t number : {1U, 9U, 10U, 4'711U, registered_numbers - 1}) {
    EXPECT_EQ(registered_number(registered_name(number)), number);
  }
  EXPECT_EQ(registered_name(4'711), ".fd/4711");
  for (const char* name : {"",
                           "7",
                           ".fd",
                           ".fd/",
                           ".fd/0",
                           ".fd/00",
                           ".fd/07",
                           ".fd/+7",
                           ".fd/-7",
                           ".fd/ 7",
                           ".fd/7 ",
                           ".fd/7x",
                           ".fd/0x7",
                           ".fd/1073741824",
                           ".fd/4294967296",
                           ".fd/99999999999999999999",
                           "a.fd/7",
                           ".FD/7"}) {
    EXPECT_EQ(registered_number(name), std::nullopt) << name;
  }
  EXPECT_EQ(registered_number(std::string_view(".fd/7\0", 6)), std::nullopt);
}

TEST(registered_names, are_shown_to_those_who_name_their_prefix) {
  for (const char* prefix : {"", ".", ".f", ".fd"}) {
    EXPECT_FALSE(is_shown(".fd/7", prefix)) << prefix;
  }
  for (const char* prefix : {".fd/", ".fd/7"}) {
    EXPECT_TRUE(is_shown(".fd/7", prefix)) << prefix;
    EXPECT_FALSE(is_shown(".fd/8", ".fd/7")) << prefix;
  }
  EXPECT_TRUE(is_shown("w", ""));
  EXPECT_TRUE(is_shown(".fd", ""));
  EXPECT_TRUE(is_shown(".fd0", ".f"));
  EXPECT_FALSE(is_shown("w", "x"));
  // Lists continue there.
  EXPECT_GT(after_registered_names, std::string_view(".fd/\xff"));
  EXPECT_FALSE(is_registered_name(after_registered_names));
}

}  // namespace
}  // namespace gpushm::base
