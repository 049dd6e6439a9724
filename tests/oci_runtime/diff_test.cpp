// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <vector>

#include "apps/gpushm-oci-runtime/text_diff.hpp"

namespace gpushm::oci_runtime {
namespace {

std::string diff(std::string_view before, std::string_view after) {
  return unified_diff(before, after, "a", "b");
}

TEST(oci_runtime_diff, equal_texts_give_empty_diff) {
  EXPECT_EQ(diff("", ""), "");
  EXPECT_EQ(diff("1\n2\n", "1\n2\n"), "");
}

TEST(oci_runtime_diff, change_has_three_lines_of_context) {
  EXPECT_EQ(diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n"),
            "--- a\n+++ b\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
}

TEST(oci_runtime_diff, near_changes_are_joined) {
  EXPECT_EQ(diff("1\n2\n3\n4\n5\n6\n7\n8\n", "2\n3\n4\n5\n6\n7\n"),
            "--- a\n+++ b\n@@ -1,8 +1,6 @@\n-1\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n");
  EXPECT_EQ(diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "2\n3\n4\n5\n6\n7\n8\n"),
            "--- a\n+++ b\n@@ -1,4 +1,3 @@\n-1\n 2\n 3\n 4\n@@ -6,4 +5,3 @@\n 6\n 7\n 8\n-9\n");
}

TEST(oci_runtime_diff, empty_text_starts_at_line_0) {
  EXPECT_EQ(diff("", "1\n"), "--- a\n+++ b\n@@ -0,0 +1 @@\n+1\n");
  EXPECT_EQ(diff("1\n2\n", ""), "--- a\n+++ b\n@@ -1,2 +0,0 @@\n-1\n-2\n");
}

TEST(oci_runtime_diff, missing_final_newline_is_marked) {
  EXPECT_EQ(diff("1", "1\n"), "--- a\n+++ b\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+1\n");
}

// Applies `difference` to `before`.
std::string patched(const std::string& before, const std::string& difference) {
  std::vector<std::string> lines;
  std::istringstream old(before);
  for (std::string line; std::getline(old, line);) {
    lines.push_back(line);
  }
  std::istringstream steps(difference);
  std::string line;
  std::getline(steps, line);
  std::getline(steps, line);
  std::string result;
  std::size_t at = 0;
  while (std::getline(steps, line)) {
    if (line.starts_with("@@")) {
      const auto start = static_cast<std::size_t>(std::stoul(line.substr(4)));
      const bool none = line.find(",0 +") != std::string::npos;
      while (at + (none ? 0 : 1) < start) {
        result += lines.at(at++) + "\n";
      }
    } else if (line.front() == '+') {
      result += line.substr(1) + "\n";
    } else {
      EXPECT_EQ(lines.at(at), line.substr(1));
      result += line.front() == ' ' ? line.substr(1) + "\n" : "";
      ++at;
    }
  }
  while (at < lines.size()) {
    result += lines.at(at++) + "\n";
  }
  return result;
}

TEST(oci_runtime_diff, patched_first_text_equals_second) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const auto text = [&] {
      std::string created;
      for (auto count = random() % 30; count > 0; --count) {
        created += static_cast<char>('a' + random() % 4);
        created += '\n';
      }
      return created;
    };
    const std::string before = text();
    const std::string after = text();
    if (before != after) {
      ASSERT_EQ(patched(before, diff(before, after)), after) << before << "---\n" << after;
    }
  }
}

}  // namespace
}  // namespace gpushm::oci_runtime
