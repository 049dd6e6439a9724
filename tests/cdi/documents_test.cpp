// SPDX-License-Identifier: Apache-2.0
// About 440 valid, invalid and borderline documents, with the verdicts of the reference loader
// (scripts/cdi_verdicts.py) and of gpushm. docs/cdi.md must list the differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/document/versions.hpp"
#include "containers/cdi/document/write.hpp"
#include "tests/docs/docs_text.hpp"

namespace gpushm_tests {
namespace {

using nlohmann::json;
namespace cdi = gpushm::cdi;

std::string text_of(const json& one) {
  std::string text;
  if (one.contains("hex")) {
    const auto digits = one["hex"].get<std::string>();
    for (std::size_t at = 0; at < digits.size(); at += 2) {
      text += static_cast<char>(std::stoi(digits.substr(at, 2), nullptr, 16));
    }
    return text;
  }
  text = one["text"].get<std::string>();
  if (one.contains("fill")) {
    std::string filling;
    for (int count = one["fill"][1].get<int>(); count > 0; --count) {
      filling += one["fill"][0].get_ref<const std::string&>();
    }
    text.replace(text.find("%FILL%"), 6, filling);
  }
  return text;
}

class cdi_documents : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(GPUSHM_CDI_CASES);
    if (!file) {
      GTEST_SKIP() << "the documents are not on this machine";
    }
    cases_ = json::parse(file);
  }
  json cases_;
};

TEST_F(cdi_documents, match_recorded_verdicts) {
  EXPECT_GE(cases_.size(), 400U);
  for (const json& one : cases_) {
    SCOPED_TRACE(one["name"].get<std::string>());
    std::set<std::string> rules;
    for (const gpushm::yaml::problem& each :
         cdi::parse(text_of(one), one["file"].get<std::string>()).problems) {
      rules.insert(each.rule);
      EXPECT_EQ(each.file, one["file"].get<std::string>());
      EXPECT_FALSE(each.text.empty());
    }
    EXPECT_EQ(rules, one["rules"].get<std::set<std::string>>());
  }
}

TEST_F(cdi_documents, valid_round_trip_in_both_formats) {
  std::size_t valid = 0;
  for (const json& one : cases_) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const cdi::parsed read = cdi::parse(text_of(one), "first");
    if (!read.problems.empty()) {
      continue;
    }
    ++valid;
    EXPECT_GE(cdi::version_index(read.content.version),
              cdi::version_index(cdi::minimum_version(read.content)));
    for (const cdi::format form : {cdi::format::yaml, cdi::format::json}) {
      const std::string text = cdi::to_text(read.content, form);
      const cdi::parsed again = cdi::parse(text, "again");
      EXPECT_THAT(again.problems, testing::IsEmpty()) << text;
      EXPECT_EQ(again.content, read.content) << text;
      EXPECT_EQ(cdi::to_text(again.content, form), text);
    }
  }
  EXPECT_GE(valid, 150U);
}

TEST_F(cdi_documents, differences_from_reference_are_listed) {
  if (!has_source_tree()) {
    GTEST_SKIP() << "the source tree is not on this machine";
  }
  std::set<std::string> differing;
  for (const json& one : cases_) {
    const std::string ours = one["rules"].empty() ? "accept" : "reject";
    if (one["reference"] != ours) {
      differing.insert(one["name"].get<std::string>() + ": " + one["reference"].get<std::string>() +
                       ", " + ours);
    }
  }
  std::set<std::string> listed;
  for (const auto& row : table_rows(
           section(source_file("docs/cdi.md"), "### Differences from the reference loader"))) {
    ASSERT_EQ(row.size(), 4U);
    EXPECT_FALSE(row[3].empty());
    listed.insert(row[0] + ": " + row[1] + ", " + row[2]);
  }
  EXPECT_EQ(listed, differing);
}

TEST_F(cdi_documents, cover_each_documented_rule) {
  if (!has_source_tree()) {
    GTEST_SKIP() << "the source tree is not on this machine";
  }
  std::set<std::string> shown;
  for (const json& one : cases_) {
    for (const json& rule : one["rules"]) {
      shown.insert(rule.get<std::string>());
    }
  }
  std::set<std::string> listed;
  for (const auto& row : table_rows(section(source_file("docs/cdi.md"), "### Rules"))) {
    listed.insert(row.at(0));
  }
  EXPECT_EQ(listed, shown);
}

}  // namespace
}  // namespace gpushm_tests
