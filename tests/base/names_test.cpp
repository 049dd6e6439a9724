// SPDX-License-Identifier: Apache-2.0
#include "base/segments/names.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpushm/error.hpp"

namespace gpushm::base {
namespace {

using namespace std::string_literals;

struct utf8_case {
  std::string bytes;
  bool well_formed;
};

TEST(utf8, is_distinguished_from_malformed_bytes) {
  const utf8_case cases[] = {
      {"", true},
      {"plain", true},
      {"\x00"s, true},
      {"\x7f", true},
      {"\xc2\x80", true},          // U+0080
      {"\xdf\xbf", true},          // U+07FF
      {"\xe0\xa0\x80", true},      // U+0800
      {"\xed\x9f\xbf", true},      // U+D7FF, before the surrogates
      {"\xee\x80\x80", true},      // U+E000, after the surrogates
      {"\xef\xbf\xbf", true},      // U+FFFF
      {"\xf0\x90\x80\x80", true},  // U+10000
      {"\xf4\x8f\xbf\xbf", true},  // U+10FFFF
      {"w/\xc3\xa4\xe2\x82\xac", true},
      {"\x80", false},  // continuation without a lead
      {"\xbf", false},
      {"\xc0\x80", false},  // overlong U+0000
      {"\xc1\xbf", false},  // overlong U+007F
      {"\xe0\x80\x80", false},
      {"\xe0\x9f\xbf", false},  // overlong U+07FF
      {"\xf0\x80\x80\x80", false},
      {"\xf0\x8f\xbf\xbf", false},  // overlong U+FFFF
      {"\xed\xa0\x80", false},      // U+D800
      {"\xed\xbf\xbf", false},      // U+DFFF
      {"\xf4\x90\x80\x80", false},  // U+110000
      {"\xf5\x80\x80\x80", false},
      {"\xf7\xbf\xbf\xbf", false},
      {"\xf8\x88\x80\x80\x80", false},  // five bytes
      {"\xfe", false},
      {"\xff", false},
      {"\xc2", false},  // truncated
      {"\xe2\x82", false},
      {"\xf0\x9f\x98", false},
      {"\xc2 ", false},  // no continuation byte
      {"\xe2\x28\xa1", false},
      {"\xe2\x82\x28", false},
      {"ok\xff", false},
  };
  for (const utf8_case& each : cases) {
    EXPECT_EQ(is_utf8(each.bytes), each.well_formed) << testing::PrintToString(each.bytes);
  }
}

std::string rejection(std::string_view name) {
  try {
    check_name("create", name);
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
    return why.what();
  }
  return {};
}

TEST(segment_names, valid_names_are_accepted) {
  for (const std::string& name :
       {"a"s, "w/llama"s, " "s, "../x"s, "k\xc3\xa4se"s, std::string(255, 'n'), "\""s}) {
    EXPECT_EQ(rejection(name), "") << name;
  }
}

TEST(segment_names, invalid_names_are_rejected_with_reason) {
  const std::string rule =
      " (a name is 1 to 255 bytes of UTF-8 without \"@\", control or invisible characters)";
  EXPECT_EQ(rejection(""), "create: the segment's name is empty" + rule);
  EXPECT_EQ(rejection(std::string(256, 'n')), "create: the segment's name has 256 bytes" + rule);
  EXPECT_EQ(rejection("\xff"), "create: the segment's name is not UTF-8" + rule);
  for (const char* name : {"@", "a@b", "w/llama@7"}) {
    EXPECT_EQ(rejection(name),
              "create: the segment's name contains \"@\", which is reserved" + rule);
  }
  const std::pair<std::string, std::string> hidden[] = {
      {"\x00"s, "\\x00"},
      {"a\nb"s, "\\x0a"},
      {"\x1f"s, "\\x1f"},
      {"\x7f"s, "\\x7f"},
      {"\t"s, "\\x09"},
      {"a\x00"s, "\\x00"},
      {"a\xc2\x9b"s
       "31m",
       "\\u009b"},                       // C1: CSI
      {"w/\xe2\x80\xaegpj", "\\u202e"},  // written from the right
      {"w/\xe2\x81\xa6x", "\\u2066"},    // a bidirectional isolate
      {"llama\xe2\x80\x8b", "\\u200b"},  // zero width
      {"\xef\xbb\xbfllama", "\\ufeff"},  // byte order mark
      {"a\xe2\x80\xa8"s
       "b",
       "\\u2028"},                           // line separator
      {"lla\xc2\xadma", "\\u00ad"},          // soft hyphen
      {"a\xf3\xa0\x81\xa1", "\\U000e0061"},  // a tag
  };
  for (const auto& [name, shown] : hidden) {
    EXPECT_EQ(
        rejection(name),
        "create: the segment's name contains the control or invisible character " + shown + rule);
  }
}

/// The textbook recurrence over the whole table.
std::size_t textbook_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

TEST(edit_distance, counts_insertions_deletions_replacements_and_swaps) {
  struct {
    const char* a;
    const char* b;
    std::size_t limit;
    std::size_t distance;
  } const cases[] = {
      {"", "", 3, 0},
      {"abc", "abc", 0, 0},
      {"abc", "abd", 0, 1},
      {"abc", "", 3, 3},
      {"", "abc", 2, 3},
      {"abc", "ab", 3, 1},
      {"abc", "xabc", 3, 1},
      {"llama", "lalma", 3, 1},
      {"llama", "llam4", 3, 1},
      {"kitten", "sitting", 3, 3},
      {"kitten", "sitting", 2, 3},
      {"abcd", "wxyz", 2, 3},
      {"w/llama", "w/llama2", 3, 1},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(edit_distance(each.a, each.b, each.limit), each.distance) << each.a << ' ' << each.b;
  }
}

TEST(edit_distance, matches_textbook_up_to_limit) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t longest) {
    std::string text(random() % (longest + 1), 'a');
    for (char& c : text) {
      c = static_cast<char>('a' + random() % 3);
    }
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    const std::string a = word(12);
    std::string b = word(12);
    if (round % 2 == 0) {  // near matches, which random words seldom are
      b = a;
      for (int edits = 0; edits < round % 5 && !b.empty(); ++edits) {
        b[random() % b.size()] = 'z';
        b.insert(random() % b.size(), 1, 'b');
      }
    }
    const std::size_t limit = random() % 6;
    ASSERT_EQ(edit_distance(a, b, limit), std::min(textbook_distance(a, b), limit + 1))
        << a << ' ' << b << ' ' << limit;
  }
}

}  // namespace
}  // namespace gpushm::base
