// SPDX-License-Identifier: Apache-2.0
// The error codes of gpushm, as C++, C, Python and JSON write them, are explained by the sections
// of docs/errors.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gpushm/error.hpp"
#include "inspect/explain/codes.hpp"
#include "inspect/explain/explain.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> all_codes() {
  std::vector<std::string> codes;
  for (std::uint16_t value = 1; value < 200; ++value) {
    const auto name = to_string(static_cast<errc>(value));
    if (name != "unknown") {
      codes.emplace_back(name);
    }
  }
  return codes;
}

std::string rule_id(std::string code) {
  std::replace(code.begin(), code.end(), '_', '-');
  return "code-" + code;
}

const explanation* find_section(const std::vector<explanation>& explanations,
                                const std::string& code) {
  const auto found =
      std::find_if(explanations.begin(), explanations.end(), [&](const explanation& each) {
        return each.rule == rule_id(code);
      });
  return found == explanations.end() ? nullptr : &*found;
}

TEST(explain_codes, each_code_has_section) {
  const auto codes = all_codes();
  EXPECT_EQ(codes.size(), 44U);
  for (const std::string& code : codes) {
    const auto explanations = explain(code);
    const explanation* section = find_section(explanations, code);
    ASSERT_NE(section, nullptr) << code;
    EXPECT_THAT(section->title, HasSubstr("gpushm error " + code + ", in Python gpushm."));
    EXPECT_THAT(section->about, Not(IsEmpty())) << code;
    EXPECT_THAT(section->causes.at(0).text, Not(IsEmpty())) << code;
    EXPECT_THAT(section->causes.at(0).fix, Not(IsEmpty())) << code;
    // Nothing but the section is an answer to "see docs/errors.md".
    EXPECT_THAT(section->about + section->causes[0].text, Not(HasSubstr("`"))) << code;
    EXPECT_THAT(section->about + section->causes[0].fix, Not(HasSubstr("]("))) << code;
  }
}

TEST(explain_codes, each_spelling_is_recognised) {
  for (const std::string& code : all_codes()) {
    std::string upper = code;
    std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) {
      return static_cast<char>(std::toupper(c));
    });
    const std::string python = python_name(code);
    for (const std::string& text : {code,
                                    python,
                                    "gpushm." + python,
                                    "gpushm." + python + ": open \"w/x\": a text (a step)",
                                    "gpushm._errors." + python + ": text",
                                    "Traceback:\n  File \"a.py\", line 2\ngpushm." + python,
                                    "GPUSHM_ERRC_" + upper,
                                    "gpushm::errc::" + code,
                                    "ErrorCode." + upper,
                                    R"({"error":{"code":")" + code + "\"}}",
                                    R"(log="{\"code\": \")" + code + "\\\"}\""}) {
      EXPECT_NE(find_section(explain(text), code), nullptr) << text;
    }
  }
}

TEST(explain_codes, python_names_are_those_of_the_package) {
  std::ifstream file(GPUSHM_PYTHON_ERRORS);
  std::set<std::string> classes;
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view mark = "class ";
    if (line.starts_with(mark) && line.find("(Error") != std::string::npos) {
      classes.insert(line.substr(mark.size(), line.find('(') - mark.size()));
    }
  }
  std::set<std::string> names;
  for (const std::string& code : all_codes()) {
    names.insert(python_name(code));
  }
  EXPECT_EQ(names, classes);
}

TEST(explain_codes, classes_of_other_programs_are_not_gpushm_errors) {
  for (const char* text : {"torch.OutOfMemoryError: CUDA out of memory",
                           "asyncio.exceptions.CancelledError",
                           "urllib3.exceptions.ProtocolError: Connection broken",
                           "openai.PermissionDeniedError: Error code: 403",
                           "tensorflow InvalidArgumentError: shape",
                           "permission_denied by the server",
                           "request timed_out after 3 s"}) {
    for (const explanation& each : explain(text)) {
      EXPECT_THAT(each.rule, Not(::testing::StartsWith("code-"))) << text;
    }
  }
}

TEST(explain_codes, message_is_explained_before_its_code) {
  const auto explanations = explain(
      "gpushm.BrokerUnreachableError: connect \"/run/gpushm/d/a/socket\": the socket does not "
      "exist");
  ASSERT_EQ(explanations.size(), 2U);
  EXPECT_EQ(explanations[0].rule, "gpushm-broker");
  EXPECT_EQ(explanations[1].rule, "code-broker-unreachable");
}

TEST(explain_codes, malformed_manual_is_refused) {
  const auto refusal = [](const char* manual) -> std::string {
    try {
      static_cast<void>(rules_of_codes(manual));
    } catch (const error& why) {
      return why.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("# Errors\n\n### 2. a_b\n\nText.\n\n- Causes: c.\n- Remedy: r.\n"), "accepted");
  EXPECT_EQ(refusal("\n### 2. a_b\n\nText.\n\n- Remedy: r.\n"),
            "read the manual of errors \"a_b\": its section has no item \"Causes:\"");
  EXPECT_EQ(refusal("\n### About\n\n- Causes: c.\n- Remedy: r.\n"),
            "read the manual of errors: a section begins with \"### NUMBER. CODE\"");
}

}  // namespace
}  // namespace gpushm::inspect
