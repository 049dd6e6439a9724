// SPDX-License-Identifier: Apache-2.0
// `explain` against messages.json, the messages that other programs print (docs/troubleshooting.md
// describes how to extend the file).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/explain/explain.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(GPUSHM_EXPLAIN_DIR "/") + name);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_NE(text, "") << name << " cannot be read";
  return text;
}

struct message {
  std::string source;
  std::string version;
  std::string where;
  std::string text;
  std::string rule;
  std::string cause;
};

struct corpus {
  std::vector<message> messages;
  std::vector<message> harmless;
};

corpus read_corpus() {
  const auto file = nlohmann::json::parse(read_file("messages.json"));
  corpus corpus;
  for (const auto& source : file.at("sources")) {
    for (const auto& each : source.at("messages")) {
      EXPECT_EQ(each.size(), 4U) << each;
      corpus.messages.push_back({source.at("source"),
                                 source.at("version"),
                                 each.at("where"),
                                 each.at("text"),
                                 each.at("rule"),
                                 each.at("cause")});
    }
  }
  for (const auto& each : file.at("harmless")) {
    corpus.harmless.push_back({each.at("source"), {}, {}, each.at("text"), {}, {}});
  }
  return corpus;
}

const corpus& messages() {
  static const corpus all = read_corpus();
  return all;
}

/// "rule/cause" that `explain` names first; empty: not recognised.
std::string answer(std::string_view text) {
  const auto all = explain(text);
  return all.empty() ? "" : all.front().rule + "/" + all.front().causes.front().id;
}

TEST(explain_messages, each_is_recognised_with_its_cause) {
  for (const message& each : messages().messages) {
    EXPECT_EQ(answer(each.text), each.rule + "/" + each.cause) << each.source << ": " << each.text;
  }
}

TEST(explain_messages, each_answer_has_cause_confirmation_and_fix) {
  std::set<std::string> rules;
  for (const message& each : messages().messages) {
    rules.insert(each.rule);
  }
  for (const explain_rule& rule : explain_rules()) {
    rules.erase(rule.id);
    EXPECT_NE(rule.title, "") << rule.id;
    for (const auto& cause : rule.causes) {
      EXPECT_NE(cause.text, "") << rule.id << "/" << cause.id;
      EXPECT_NE(cause.confirm, "") << rule.id << "/" << cause.id;
      EXPECT_NE(cause.fix, "") << rule.id << "/" << cause.id;
    }
  }
  EXPECT_THAT(rules, IsEmpty()) << "no such rule";
}

TEST(explain_messages, each_is_recognised_in_a_log) {
  std::string before;
  for (std::size_t i = 0; i < messages().harmless.size(); i += 6) {
    before += "2026-11-29T10:00:00.123456789Z " + messages().harmless[i].text + "\r\n";
  }
  for (const message& each : messages().messages) {
    const std::string log = before + "2026-11-29T10:00:01.5Z " + each.text + "\nthe program ends\n";
    EXPECT_THAT(answer(log), ::testing::StartsWith(each.rule + "/")) << each.text;
  }
}

TEST(explain_messages, harmless_lines_are_not_recognised) {
  EXPECT_GE(messages().harmless.size(), 50U);
  for (const message& each : messages().harmless) {
    EXPECT_EQ(answer(each.text), "") << each.source << ": " << each.text;
  }
}

TEST(explain_messages, cover_the_sources) {
  std::set<std::string> sources;
  std::set<std::string> texts;
  for (const message& each : messages().messages) {
    sources.insert(each.source);
    EXPECT_TRUE(texts.insert(each.source + each.text).second) << "twice: " << each.text;
    EXPECT_NE(each.version, "") << each.source;
    EXPECT_NE(each.where, "") << each.text;
  }
  sources.erase("gpushm");
  EXPECT_GE(sources.size(), 20U);
  EXPECT_GE(messages().messages.size(), 300U);
}

TEST(explain_messages, reach_each_rule) {
  std::set<std::string> reached;
  for (const message& each : messages().messages) {
    reached.insert(each.rule);
  }
  for (const explain_rule& rule : parse_explain_rules(read_file("rules.json"))) {
    // explain_test.cpp covers gpushm's own errors, and the records of the kernel's audit.
    const bool covered_elsewhere =
        rule.id.rfind("gpushm-", 0) == 0 || rule.id.rfind("selinux", 0) == 0 ||
        rule.id.rfind("apparmor", 0) == 0 || rule.id.rfind("seccomp", 0) == 0;
    EXPECT_TRUE(covered_elsewhere || reached.count(rule.id) > 0) << rule.id;
  }
}

TEST(explain_messages, reset_names_the_holders_first) {
  // nvidia-smi refuses to reset a GPU that any program holds, and a drained node still runs such
  // programs.
  for (const explain_rule& rule : explain_rules()) {
    for (const auto& cause : rule.causes) {
      for (const char* command : {"--gpu-reset", "nvidia-smi -r", "rmmod ", "modprobe -r nvidia"}) {
        if (cause.fix.find(command) != std::string::npos) {
          EXPECT_THAT(cause.fix, HasSubstr("fuser -v /dev/nvidia")) << rule.id << "/" << cause.id;
        }
      }
    }
  }
}

TEST(explain_messages, only_a_damaged_file_is_fetched_again) {
  for (const explain_rule& rule : explain_rules()) {
    for (const auto& cause : rule.causes) {
      const bool fetches = cause.fix.find("fetch this file again") != std::string::npos ||
                           cause.fix.find("download") != std::string::npos;
      const bool of_checkpoints = rule.id.rfind("safetensors-", 0) == 0 ||
                                  cause.fix.find("download.pytorch.org") != std::string::npos;
      EXPECT_TRUE(!fetches || of_checkpoints) << rule.id << "/" << cause.id;
    }
  }
  EXPECT_THAT(answer("Error while deserializing header: HeaderTooLarge"), Not(IsEmpty()));
}

}  // namespace
}  // namespace gpushm::inspect
