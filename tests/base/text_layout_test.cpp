// SPDX-License-Identifier: Apache-2.0
#include "base/text/text_layout.hpp"

#include <gtest/gtest.h>

namespace {

using gpushm::base::fields_text;
using gpushm::base::padded;
using gpushm::base::shortened;
using gpushm::base::table;
using gpushm::base::width;
using gpushm::base::wrapped;

TEST(text_layout, characters_are_counted_and_not_bytes) {
  EXPECT_EQ(width("größer"), 6U);
  EXPECT_EQ(padded("größe", 7), "größe  ");
  EXPECT_EQ(padded("larger", 3), "larger ");
  EXPECT_EQ(shortened("größer", 4), "größ");
  EXPECT_EQ(shortened("größer", 3), "grö");
  EXPECT_EQ(shortened("größer", 6), "größer");
  EXPECT_EQ(shortened("größer", 0), "");
}

TEST(text_layout, text_is_wrapped_between_words) {
  EXPECT_EQ(wrapped("one two three", 2, 9), "  one two\n  three\n");
  EXPECT_EQ(wrapped("first\nsecond", 1), " first\n second\n");
  EXPECT_EQ(wrapped("abcdefghijkl m", 2, 5), "  abcdefghijkl\n  m\n");
  EXPECT_EQ(wrapped("", 2), "\n");
}

TEST(text_layout, first_line_can_start_with_a_mark) {
  EXPECT_EQ(wrapped("a   ", "one two three", 4, 11), "a   one two\n    three\n");
  EXPECT_EQ(wrapped({}, "abcdefghijkl m", 2, 5), "abcdefghijkl\n  m\n");
  EXPECT_EQ(wrapped({}, "", 0, 5), "\n");
  EXPECT_EQ(wrapped("- ", "one\ntwo", 2), "- one\n  two\n");
}

TEST(text_layout, columns_are_as_wide_as_their_widest_cell) {
  table rows({{"NAME"}, {"SIZE", table::align::right}, {"NOTE"}});
  EXPECT_TRUE(rows.empty());
  rows.add({"größer", "1", ""});
  rows.add({"b", "1024", ""});
  EXPECT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.text(),
            "NAME    SIZE  NOTE\n"
            "größer     1\n"
            "b       1024\n");
  EXPECT_EQ(rows.text(table::empty_columns::omitted),
            "NAME    SIZE\n"
            "größer     1\n"
            "b       1024\n");
}

TEST(text_layout, fields_are_aligned) {
  EXPECT_EQ(fields_text({{"a", "1"}, {"long", "2"}}, 1), " a     1\n long  2\n");
}

}  // namespace
