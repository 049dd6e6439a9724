// SPDX-License-Identifier: Apache-2.0
#include "base/text/text.hpp"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/report/log.hpp"
#include "base/segments/names.hpp"
#include "gpushm/error.hpp"

namespace gpushm::base {
namespace {

using namespace std::string_literals;

std::string utf8(char32_t value) {
  const auto byte = [](char32_t bits) {
    return static_cast<char>(static_cast<unsigned char>(bits));
  };
  const auto tail = [&](unsigned shift) { return byte(0x80U | ((value >> shift) & 0x3FU)); };
  if (value < 0x80) {
    return {byte(value)};
  }
  if (value < 0x800) {
    return {byte(0xC0U | (value >> 6U)), tail(0)};
  }
  if (value < 0x10000) {
    return {byte(0xE0U | (value >> 12U)), tail(6), tail(0)};
  }
  return {byte(0xF0U | (value >> 18U)), tail(12), tail(6), tail(0)};
}

TEST(printable, keeps_plain_text) {
  for (const std::string& text : {""s,
                                  "w/llama 3"s,
                                  R"(C:\x1b "quoted")"s,
                                  "k\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80"s,
                                  "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d"s}) {
    EXPECT_EQ(printable(text), text);
  }
}

struct escape_case {
  std::string text;
  std::string shown;
};

TEST(printable, escapes_control_and_invisible_characters) {
  const escape_case cases[] = {
      {"\x1b]0;title\x07", R"(\x1b]0;title\x07)"},
      {"a\rb\nc\td\0e"s, R"(a\x0db\x0ac\x09d\x00e)"},
      {"\x7f", R"(\x7f)"},
      {"\xc2\x80\xc2\x9b[2J\xc2\x9f", R"(\u0080\u009b[2J\u009f)"},
      {"\xc2\xa0", "\xc2\xa0"},  // the first after the controls
      {"\xc2\xad", R"(\u00ad)"},
      {"\xd8\x9c", R"(\u061c)"},
      {"\xe2\x80\x8b\xe2\x80\x8f", R"(\u200b\u200f)"},
      {"\xe2\x80\x90", "\xe2\x80\x90"},  // a hyphen
      {"\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xae", R"(\u2028\u2029\u202a\u202e)"},
      {"\xe2\x81\xa0\xe2\x81\xa6\xe2\x81\xa9", R"(\u2060\u2066\u2069)"},
      {"\xef\xbb\xbf", R"(\ufeff)"},
      {"\xef\xbf\xbd", "\xef\xbf\xbd"},  // the replacement character is visible
      {"\xef\xbf\xbf", R"(\uffff)"},
      {"\xf3\xa0\x80\x81", R"(\U000e0001)"},  // a tag
      {"\xff\xc2", R"(\xff\xc2)"},            // not UTF-8
      {"\xed\xa0\x80", R"(\xed\xa0\x80)"},    // a surrogate
      {"\x80 \xbf", R"(\x80 \xbf)"},
  };
  for (const escape_case& each : cases) {
    EXPECT_EQ(printable(each.text), each.shown);
    EXPECT_EQ(printable(each.shown), each.shown) << "idempotent";
  }
}

TEST(printable, covers_all_characters) {
  // By code point, independently of the table under test.
  const auto hides = [](char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return first <= c && c <= last; };
    return in(0, 0x1F) || in(0x7F, 0x9F) || c == 0xAD || c == 0x61C || in(0x200B, 0x200F) ||
           in(0x2028, 0x202E) || in(0x2060, 0x206F) || c == 0xFEFF || in(0xE0000, 0xE0FFF);
  };
  const auto letter = [](char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return first <= c && c <= last; };
    return in(0x20, 0x7E) || in(0xA1, 0xAC) || in(0xAE, 0x34E) || in(0x370, 0x3FF) ||
           in(0x2010, 0x2027) || in(0x4E00, 0x9FFF) || in(0xAC00, 0xD7A3) || in(0x1F600, 0x1F64F);
  };
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    const std::string text = utf8(c);
    ASSERT_EQ(first_character(text).value, c);
    ASSERT_EQ(first_character(text).length, text.size());
    if (hides(c)) {
      ASSERT_EQ(printable(text).front(), '\\') << static_cast<unsigned>(c);
    }
    if (letter(c)) {
      ASSERT_EQ(printable(text), text) << static_cast<unsigned>(c);
    }
  }
}

TEST(printable, returns_one_line_of_utf8_for_any_bytes) {
  std::mt19937 random(12);  // NOLINT(cert-msc51-cpp): the same in every run
  for (int round = 0; round < 2'000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    const std::string shown = printable(text);
    ASSERT_TRUE(is_utf8(shown));
    ASSERT_EQ(printable(shown), shown);
    for (std::string_view rest = shown; !rest.empty();) {
      const character next = first_character(rest);
      ASSERT_FALSE(is_control_or_invisible(next.value));
      rest.remove_prefix(next.length);
    }
  }
}

TEST(printable_lines, keeps_only_line_feeds) {
  EXPECT_EQ(printable_lines("a\n\tb\r\n\x1b"), "a\n\\x09b\\x0d\n\\x1b");
}

TEST(printable, is_applied_to_errors) {
  const error created(errc::no_such_segment,
                      "open\x1b",
                      "a\nb\xe2\x80\xae",
                      "the peer says \x9b",
                      "try \x07 again");
  EXPECT_STREQ(created.what(), R"(open\x1b "a\x0ab\u202e": the peer says \x9b (try \x07 again))");
  EXPECT_EQ(created.object(), "a\nb\xe2\x80\xae") << "unescaped, for programs";
}

TEST(printable, is_applied_to_log_lines) {
  std::string received;
  set_log_sink([&](log_level, std::string_view text) { received = text; });
  log(log_level::warning, "peer \x1b[31m\xc2\x9b said\nmore");
  set_log_sink({});
  EXPECT_EQ(received, "peer \\x1b[31m\\u009b said\nmore");
}

// ---- deferred lines ----

TEST(held_log_lines, arrive_in_order_when_outermost_ends) {
  std::vector<std::string> received;
  set_log_sink([&](log_level, std::string_view text) { received.emplace_back(text); });
  log(log_level::info, "0");
  {
    held_log_lines outer;
    log(log_level::info, "1");
    {
      held_log_lines inner;
      log(log_level::info, "2");
    }
    log(log_level::info, "3");
    EXPECT_EQ(received, std::vector<std::string>{"0"});
    std::thread([] { log(log_level::info, "another thread's"); }).join();
    EXPECT_EQ(received.back(), "another thread's");
  }
  log(log_level::info, "4");
  set_log_sink({});
  EXPECT_EQ(received, (std::vector<std::string>{"0", "another thread's", "1", "2", "3", "4"}));
}

TEST(held_log_lines, arrive_if_sink_logs_or_throws) {
  std::vector<std::string> received;
  set_log_sink([&](log_level, std::string_view text) {
    received.emplace_back(text);
    if (text == "1") {
      held_log_lines of_a_call;
      log(log_level::info, "of the sink");
    }
    throw std::runtime_error("sink");
  });
  {
    held_log_lines outer;
    log(log_level::info, "1");
    log(log_level::info, "2");
  }
  set_log_sink({});
  EXPECT_EQ(received, (std::vector<std::string>{"1", "of the sink", "2"}));
}

TEST(held_log_lines, are_counted_above_limit) {
  std::vector<std::string> received;
  set_log_sink([&](log_level, std::string_view text) { received.emplace_back(text); });
  {
    held_log_lines outer;
    for (int i = 0; i < 300; ++i) {
      log(log_level::info, std::to_string(i));
    }
  }
  set_log_sink({});
  ASSERT_EQ(received.size(), 257U);
  EXPECT_EQ(received[255], "255");
  EXPECT_EQ(received[256], "44 more lines were dropped");
}

}  // namespace
}  // namespace gpushm::base
