// SPDX-License-Identifier: Apache-2.0
#include "base/segments/versioned_names.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::base {
namespace {

TEST(versioned_names, have_base_selector_and_part) {
  EXPECT_EQ(parse_versioned_name("open", "w/llama@7"), (versioned_name{"w/llama", 7, {}, {}}));
  EXPECT_EQ(parse_versioned_name("open", "w@latest/rank0"),
            (versioned_name{"w", 0, "latest", "rank0"}));
  EXPECT_EQ(parse_versioned_name("open", "w@9007199254740992/a/b"),
            (versioned_name{"w", max_version_number, {}, "a/b"}));
  EXPECT_EQ(parse_versioned_name("open", "w@blue-2"), (versioned_name{"w", 0, "blue-2", {}}));
  EXPECT_FALSE(is_versioned_name("w/llama"));
}

TEST(versioned_names, have_one_text) {
  for (const std::string name : {"w@1", "w@10/x", "a/b@prod", "a/b@prod/c/d"}) {
    EXPECT_EQ(text_of(parse_versioned_name("open", name)), name);
  }
}

TEST(versioned_names, others_are_refused_with_the_form) {
  const std::vector<std::string> wrong{"@1",
                                       "w@",
                                       "w@/p",
                                       "w@1/",
                                       "w@0",
                                       "w@01",
                                       "w@+1",
                                       "w@1e3",
                                       "w@ 1",
                                       "w@-1",
                                       "w@Latest",
                                       "w@-a",
                                       "w@a_b",
                                       "w@9007199254740993",
                                       "w@1@2",
                                       "w@a@b",
                                       "w@1/p@2",
                                       "w@18446744073709551617",
                                       "w\x01@1",
                                       "w@1/\x7f",
                                       "w@" + std::string(33, 'a'),
                                       std::string(254, 'w') + "@1"};
  for (const std::string& each : wrong) {
    try {
      static_cast<void>(parse_versioned_name("open", each));
      ADD_FAILURE() << each;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::invalid_argument) << each;
      EXPECT_NE(why.next_step(), "") << each;
    }
  }
}

/// Whatever is accepted is written as it was read.
TEST(versioned_names, random_texts_round_trip_or_are_refused) {
  std::mt19937 random(42);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same texts each time
  const std::string letters = "w@/a1-0Z";
  std::size_t accepted = 0;
  for (int i = 0; i != 200'000; ++i) {
    std::string name;
    for (std::size_t length = random() % 9; length > 0; --length) {
      name += letters[random() % letters.size()];
    }
    if (!is_versioned_name(name)) {
      continue;
    }
    try {
      const versioned_name parsed = parse_versioned_name("open", name);
      ++accepted;
      EXPECT_EQ(text_of(parsed), name);
      EXPECT_NE(parsed.number == 0, parsed.alias.empty()) << name;
    } catch (const error&) {  // expected for most
    }
  }
  EXPECT_GT(accepted, 1'000U);
}

}  // namespace
}  // namespace gpushm::base
