// SPDX-License-Identifier: Apache-2.0
// Every rule of rules.json against its own examples, the required coverage, and hostile texts.

#include "inspect/explain/explain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "gpu/driver/cuda_abi.hpp"
#include "gpushm/error.hpp"
#include "inspect/explain/audit.hpp"
#include "inspect/explain/clean.hpp"
#include "inspect/explain/match.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

// Found by argument-dependent lookup; otherwise GoogleTest prints bytes.
static void PrintTo(const explain_rule& rule, std::ostream* to) {
  *to << rule.id;
}

namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> rules_of(std::string_view text) {
  std::vector<std::string> ids;
  for (const explanation& each : explain(text)) {
    ids.push_back(each.rule);
  }
  return ids;
}

std::string first_rule(std::string_view text) {
  const auto ids = rules_of(text);
  return ids.empty() ? "" : ids.front();
}

const explanation* find_rule(const std::vector<explanation>& explanations, std::string_view id) {
  const auto found = std::find_if(explanations.begin(),
                                  explanations.end(),
                                  [&](const explanation& each) { return each.rule == id; });
  return found == explanations.end() ? nullptr : &*found;
}

bool has_phrase(std::string_view text, std::string_view phrase) {
  const explain_text searched(text);
  return searched.find(pattern(phrase), {0, searched.lower().size()}).has_value();
}

situation with(const std::map<std::string, verdict>& checks,
               const std::vector<std::string>& facts) {
  situation here;
  here.facts.insert(facts.begin(), facts.end());
  for (const auto& [id, result] : checks) {
    here.checks.push_back({id, "driver", result, "as in the example", "", "", ""});
  }
  return here;
}

// ---- rules.json ----

class each_rule : public ::testing::TestWithParam<explain_rule> {};

TEST_P(each_rule, has_matching_and_unrelated_examples) {
  EXPECT_THAT(GetParam().matches, Not(IsEmpty()));
  EXPECT_THAT(GetParam().unrelated, Not(IsEmpty()));
}

TEST_P(each_rule, is_first_for_its_texts) {
  for (const std::string& text : GetParam().matches) {
    EXPECT_EQ(first_rule(text), GetParam().id) << text;
  }
}

TEST_P(each_rule, does_not_match_unrelated_texts) {
  for (const std::string& text : GetParam().unrelated) {
    EXPECT_THAT(rules_of(text), Not(Contains(GetParam().id))) << text;
  }
}

TEST_P(each_rule, matches_each_of_its_patterns) {
  const explain_rule& rule = GetParam();
  std::vector<std::string> texts = rule.names;
  texts.insert(texts.end(), rule.alone.begin(), rule.alone.end());
  for (const int number : rule.numbers) {
    texts.push_back(std::to_string(number));
    texts.push_back("CUDA error " + std::to_string(number));
    texts.push_back("failed, code=" + std::to_string(number));
  }
  for (std::string phrase : rule.phrases) {
    std::replace(phrase.begin(), phrase.end(), '*', '1');
    texts.push_back(phrase);
  }
  for (const std::string& text : texts) {
    EXPECT_THAT(rules_of(text), Contains(rule.id)) << text;
  }
}

TEST_P(each_rule, orders_causes_by_evidence) {
  const explain_rule& rule = GetParam();
  std::set<std::string> firsts;
  for (const explain_order& order : rule.orders) {
    const std::string text = order.text.empty() ? rule.matches.at(0) : order.text;
    const auto all = explain(text, with(order.checks, order.facts));
    const explanation* found = find_rule(all, rule.id);
    ASSERT_NE(found, nullptr) << text;
    EXPECT_EQ(found->causes.front().id, order.first) << text;
    firsts.insert(order.first);
  }
  if (rule.causes.size() > 1) {
    // At least one order differs from that of the priors; otherwise the conditions have no effect.
    const auto usual =
        std::max_element(rule.causes.begin(), rule.causes.end(), [](const auto& a, const auto& b) {
          return a.prior < b.prior;
        });
    firsts.erase(usual->id);
    EXPECT_THAT(firsts, Not(IsEmpty())) << "no example changes the order";
  }
}

TEST_P(each_rule, numbers_agree_with_names) {
  static const std::map<std::string, int> numbers{
#define GPUSHM_NUMBER(name, value) {#name, value},
      GPUSHM_CUDA_RESULTS(GPUSHM_NUMBER)
#undef GPUSHM_NUMBER
  };
  for (const std::string& name : GetParam().names) {
    const auto known = numbers.find(name);
    if (known != numbers.end()) {
      EXPECT_THAT(GetParam().numbers, Contains(known->second)) << name;
    }
  }
}

TEST_P(each_rule, every_condition_has_an_effect) {
  // Each condition must change its cause's share: otherwise a condition that never holds (a
  // misspelt pattern, a contradicting fact) would go unnoticed.
  const explain_rule& rule = GetParam();
  for (const explain_cause& cause : rule.causes) {
    for (const explain_condition& condition : cause.when) {
      if (rule.causes.size() == 1 || condition.factor == 1) {
        continue;
      }
      situation here;
      // An example whose errno values and functions do not exclude the cause.
      const auto example =
          std::find_if(rule.matches.begin(), rule.matches.end(), [&](const std::string& each) {
            const auto explanations = explain(each);
            const explanation* found = find_rule(explanations, rule.id);
            return found != nullptr &&
                   std::any_of(found->causes.begin(), found->causes.end(), [&](const auto& one) {
                     return one.id == cause.id;
                   });
          });
      ASSERT_NE(example, rule.matches.end()) << "no example has the cause " << cause.id;
      std::string text = *example;
      if (!condition.text.empty()) {
        std::string words = condition.text;
        words.erase(std::remove(words.begin(), words.end(), '*'), words.end());
        text +=
            has_audit_record(clean(text).text) ? " " + words : "\n" + words;  // its own fields only
      } else if (!condition.fact.empty()) {
        here.facts.insert(condition.fact);
      } else {
        here = with({{condition.check, condition.result}}, {});
      }
      const auto share = [&](const std::vector<explanation>& explanations) {
        const explanation* explanation = find_rule(explanations, rule.id);
        EXPECT_NE(explanation, nullptr) << text;
        for (const auto& each :
             explanation == nullptr ? std::vector<struct cause>{} : explanation->causes) {
          if (each.id == cause.id) {
            return each.share;
          }
        }
        return -1.0;
      };
      const bool there_already = !condition.text.empty() && has_phrase(*example, condition.text);
      if (!there_already) {
        EXPECT_NE(share(explain(text, here)), share(explain(*example)))
            << cause.id << ": " << condition.check << condition.fact << condition.text;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(explain_rules,
                         each_rule,
                         ::testing::ValuesIn(explain_rules()),
                         [](const auto& given) {
                           std::string name = given.param.id;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

std::string refusal(const std::string& json) {
  try {
    static_cast<void>(parse_explain_rules(json));
  } catch (const error& why) {
    return why.what();
  }
  return "accepted";
}

TEST(explain_file, malformed_rule_is_rejected) {
  const std::string cause =
      R"("causes":[{"id":"c","prior":0.5,"text":"t","confirm":"c","fix":"f"}])";
  const std::string start = R"({"rules":[{"id":"r","title":"t",)";
  EXPECT_EQ(refusal(start + R"("names":["A"],)" + cause + "}]}"), "accepted");
  EXPECT_EQ(refusal("{"), "read rules of explain: the rules are not JSON");
  EXPECT_EQ(refusal("[]"), "read rules of explain \"file\": is not an object");
  EXPECT_EQ(refusal(start + cause + "}]}"), "read rules of explain \"r\": has no patterns");
  EXPECT_EQ(refusal(start + R"("names":["A"]}]})"), "read rules of explain \"r\": has no causes");
  EXPECT_EQ(refusal(start + R"("nmaes":["A"]}]})"),
            "read rules of explain \"r\": unknown key \"nmaes\"");
  EXPECT_EQ(refusal(start + R"("names":"A"}]})"),
            "read rules of explain \"r\": \"names\" has the wrong type");
  const auto when = [&](const std::string& condition) {
    return refusal(start +
                   R"("names":["A"],"causes":[{"id":"c","prior":1,"text":"t","confirm":"c",)"
                   R"("fix":"f","when":[)" +
                   condition + "]}]}]}");
  };
  EXPECT_EQ(when(R"({"check":"uvm","verdict":"ok","factor":2})"),
            "read rules of explain \"r/c\": unknown check \"uvm\"");
  EXPECT_EQ(when(R"({"check":"uvm-major","verdict":"bad","factor":2})"),
            "read rules of explain \"r/c\": unknown verdict \"bad\"");
  EXPECT_EQ(when(R"({"fact":"sunny","factor":2})"),
            "read rules of explain \"r/c\": unknown fact \"sunny\"");
  EXPECT_EQ(when(R"({"fact":"mig","text":"x","factor":2})"),
            "read rules of explain \"r/c\": a condition is one of check, fact and text");
  EXPECT_EQ(when(R"({"fact":"mig","factor":0})"),
            "read rules of explain \"r/c\": a factor is above 0 and at most 100, and absent with "
            "\"excludes\"");
  EXPECT_EQ(when(R"({"fact":"mig","excludes":true})"), "accepted");
  EXPECT_EQ(when(R"({"fact":"mig","factor":2,"excludes":true})"),
            "read rules of explain \"r/c\": a factor is above 0 and at most 100, and absent with "
            "\"excludes\"");
  EXPECT_EQ(
      refusal(start + R"("names":["A"],"causes":[{"id":"c","prior":1,"text":"t","confirm":"c",)"
                      R"("fix":"f","errno":["EWRONG"]}]}]})"),
      "read rules of explain \"r/c\": unknown errno \"EWRONG\"");
}

// ---- required coverage ----

TEST(explain, covers_troubleshooting_table) {
  EXPECT_EQ(first_rule("cudaIpcOpenMemHandle: invalid device context"), "invalid-context");
  EXPECT_EQ(first_rule("cudaIpcOpenMemHandle: invalid argument"), "invalid-value");
  EXPECT_EQ(first_rule("Consumer hangs waiting for handle"), "consumer-waits");
  EXPECT_EQ(first_rule("Pod stays Init: ResourceClaim not bound"), "claim-unbound");
  EXPECT_EQ(first_rule("Sum is zero in bare-metal example"), "sum-zero");
  EXPECT_EQ(first_rule("the scheduler quietly landed on different nodes"), "different-nodes");
  EXPECT_EQ(first_rule("Start it early and you'll hit ENOENT on the handle"),
            "handle-file-missing");
}

TEST(explain, corrects_published_misconceptions) {
  const auto context = explain("invalid device context");
  EXPECT_THAT(context.at(0).about, HasSubstr("\"hostPID is required\" is wrong"));
  const auto value = explain("invalid argument");
  EXPECT_THAT(value.at(0).about, HasSubstr("\"privileged is required\" is wrong"));
  for (const auto& rule : explain_rules()) {
    for (const auto& each : rule.causes) {
      EXPECT_THAT(each.fix, Not(HasSubstr("privileged: true"))) << rule.id;
      EXPECT_THAT(each.fix, Not(HasSubstr("hostPID: true"))) << rule.id;
    }
  }
}

// ---- recognising ----

TEST(explain, finds_nothing_in_texts_without_errors) {
  for (const char* text : {"",
                           " \n\t",
                           "hello",
                           "cuda",
                           "2026-11-21 12:00:01 step 201 of 1000, loss 0.35",
                           "listening on port 8000",
                           "0",
                           "12345678901234567890"}) {
    EXPECT_THAT(rules_of(text), IsEmpty()) << text;
  }
}

TEST(explain, numbers_match_only_as_error_codes) {
  for (const char* text : {"201",
                           " 201\n",
                           "\"201\"",
                           "error 201",
                           "Error: 201",
                           "error code 201",
                           "code=201",
                           "CUresult 201",
                           "cuIpcOpenMemHandle returned 201",
                           "failed with 201",
                           "CUDA error (201)"}) {
    EXPECT_THAT(rules_of(text), ElementsAre("invalid-context")) << text;
  }
  for (const char* text : {"201 files",
                           "exit code 201",
                           "exited with exit code: 201",
                           "HTTP error 201",
                           "errno code 201",
                           "error 2011",
                           "error 201.5",
                           "terror 201",
                           "error201x"}) {
    EXPECT_THAT(rules_of(text), Not(Contains("invalid-context"))) << text;
  }
}

TEST(explain, prefers_words_to_numbers_and_longer_matches) {
  EXPECT_THAT(rules_of("error 2: invalid device context"), ElementsAre("invalid-context"));
  EXPECT_THAT(rules_of("pidfd_getfd: Operation not permitted"), ElementsAre("pidfd-getfd"));
}

TEST(explain, reads_log_with_colours_and_other_encodings) {
  std::string log;
  for (int i = 0; i < 2000; ++i) {
    log += "2026-11-21T10:00:00Z INFO step " + std::to_string(i) + " ok\r\n";
  }
  log +=
      "Consumer: \x1b[1;31mcudaIpcOpenMemHandle\x1b[0m:   \x1b[31minvalid\x1b[0m "
      "device\tcontext\r\n";
  log += "command terminated with exit code 139\n";
  const auto explanations = explain(log);
  ASSERT_THAT(explanations, SizeIs(2));
  EXPECT_EQ(explanations[0].rule, "invalid-context");
  EXPECT_EQ(explanations[0].line_number, 2001U);
  EXPECT_EQ(explanations[0].found, "invalid device context");
  EXPECT_EQ(explanations[0].line, "Consumer: cudaIpcOpenMemHandle: invalid device context");
  EXPECT_EQ(explanations[1].rule, "importer-crashes");
  EXPECT_EQ(explanations[1].line_number, 2002U);
}

TEST(explain, finds_xid_in_each_line) {
  EXPECT_THAT(
      rules_of("NVRM: Xid (PCI:0000:3b:00): 79, GPU\nNVRM: Xid (PCI:0000:3b:00): 31, pid=1"),
      ElementsAre("xid-79", "xid-31"));
}

TEST(explain, long_line_is_shortened_around_match) {
  const std::string long_line =
      std::string(5000, 'x') + " invalid device context " + std::string(5000, 'y');
  const auto all = explain(long_line);
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_LE(all[0].line.size(), 80U);
  EXPECT_THAT(all[0].line, HasSubstr("invalid device context"));
}

// ---- ordering ----

TEST(explain, shares_are_ordered_and_sum_to_one) {
  for (const explain_rule& rule : explain_rules()) {
    for (const explanation& each : explain(rule.matches.at(0))) {
      double sum = 0;
      double last = 2;
      for (const auto& one : each.causes) {
        EXPECT_LE(one.share, last);
        last = one.share;
        sum += one.share;
      }
      EXPECT_NEAR(sum, 1, 1e-9) << rule.id;
    }
  }
}

TEST(explain, evidence_names_facts_and_checks) {
  situation here;
  here.facts = {"own-pid-namespace"};
  here.checks = {
      {"pid-namespace", "isolation", verdict::note, "private,\x1b[31m PID 1", "", "", ""}};
  const auto explanations = explain("invalid device context", here);
  ASSERT_THAT(explanations, SizeIs(1));
  EXPECT_EQ(explanations[0].causes.at(0).id, "pid-collision");
  EXPECT_THAT(
      explanations[0].causes.at(0).evidence,
      ElementsAre(R"(pid-namespace (note): private,\x1b[31m PID 1)",
                  "this PID namespace is private: its main program is PID 1, like the other "
                  "container's"));
  EXPECT_THAT(explanations[0].causes.at(1).evidence, IsEmpty());
}

TEST(explain_rules, may_name_every_check) {
  for (const check& each : examine(facts())) {
    EXPECT_TRUE(is_check_id(each.id)) << each.id;
  }
  EXPECT_FALSE(is_check_id("nothing"));
  EXPECT_EQ(check_ids().size(), examine(facts()).size());
}

TEST(situation, contains_facts_of_machine) {
  facts facts;
  EXPECT_THAT(situation_of(facts, {}).facts,
              ::testing::UnorderedElementsAre("no-gpus", "no-module", "no-imex"));

  facts.module_version = "580.159.04";
  facts.gvisor = true;
  facts.mps = true;
  facts.shm_bytes = 64UL * 1024 * 1024;
  facts.imex_channels = {0};
  facts.xids.push_back({"0000:18:00.0", 79, "Xid"});
  // The PID of `gpushm explain` itself, not of the program that failed (kubectl exec).
  facts.self.pid = 4711;
  facts.self.namespaces["pid"].host = false;
  facts.self.container.runtime = "containerd";
  facts.self.container.pod_uid = "abc";
  facts.self.variables["CUDA_VISIBLE_DEVICES"] = "0";
  facts.gpus.resize(2);
  facts.gpus[0].sharing = "mig";
  facts.gpus[1].sharing = "vgpu";
  facts.gpus[1].open_error = 1;
  facts.gpus[0].nvml.emplace();
  facts.gpus[0].nvml->total_bytes = 1000;
  facts.gpus[0].nvml->free_bytes = 49;
  EXPECT_THAT(situation_of(facts, {}).facts,
              ::testing::UnorderedElementsAre("gvisor",
                                              "mps",
                                              "small-shm",
                                              "xids",
                                              "own-pid-namespace",
                                              "in-container",
                                              "in-pod",
                                              "hides-devices",
                                              "several-gpus",
                                              "mig",
                                              "vgpu",
                                              "some-gpus-hidden",
                                              "memory-full"));
  facts.shm_bytes += 1;
  facts.gpus[0].nvml->free_bytes = 50;
  EXPECT_THAT(situation_of(facts, {}).facts, Not(Contains("small-shm")));
  EXPECT_THAT(situation_of(facts, {}).facts, Not(Contains("memory-full")));
}

// ---- hostile texts ----

void expect_harmless(const std::string& text) {
  for (const char c : text) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << text;
  }
}

TEST(explain, removes_control_characters) {
  std::string text;
  for (int i = 0; i < 256; ++i) {
    text += static_cast<char>(i);
  }
  text += " CUDA_ERROR_INVALID_CONTEXT ";
  text += "\x1b]0;title\x07\xc2\x9b\xe2\x80\xae";
  text += std::string("\0", 1);
  const auto explanations = explain(text);
  ASSERT_THAT(explanations, SizeIs(1));
  expect_harmless(explanations[0].line);
  expect_harmless(explanations[0].found);
  EXPECT_THAT(explanations[0].line, Not(HasSubstr("\xc2\x9b")));
  EXPECT_THAT(explanations[0].line, Not(HasSubstr("\xe2\x80\xae")));
}

TEST(explain, near_matches_everywhere_stay_fast) {
  constexpr std::size_t size_bytes = 512UL * 1024;
  // Of this process's CPU, which other processes do not slow down.
  constexpr double most_seconds = gpushm::base::under_sanitizer ? 60 : 10;
  for (const std::string& part : {std::string("xid ("),
                                  std::string("1 "),
                                  std::string("error 1x "),
                                  std::string("cuda"),
                                  std::string("consumer "),
                                  std::string("handle "),
                                  std::string("invalid device context "),
                                  std::string("\x1b["),
                                  std::string("\n")}) {
    std::string text;
    while (text.size() < size_bytes) {
      text += part;
    }
    const std::clock_t start = std::clock();
    static_cast<void>(explain(text));
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, most_seconds) << part;
  }
}

TEST(explain, survives_random_bytes) {
  std::mt19937 random(4711);  // NOLINT(cert-msc51-cpp): the same sequence in every run
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 300, '\0');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    const std::string rule = explain_rules()[random() % explain_rules().size()].matches.at(0);
    for (const auto& each : explain(text + " " + rule + " " + text)) {
      expect_harmless(each.line);
      expect_harmless(each.found);
      EXPECT_THAT(each.causes, Not(IsEmpty()));
    }
  }
}

}  // namespace
}  // namespace gpushm::inspect
