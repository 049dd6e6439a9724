// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/rules.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "gpushm/error.hpp"
#include "inspect/explain/codes.hpp"
#include "inspect/explain/evidence.hpp"
#include "inspect/explain/explain.hpp"

namespace gpushm::inspect {

/// The embedded rules.json and docs/errors.md.
std::string_view explain_data() noexcept;
std::string_view error_manual() noexcept;

namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& object, const std::string& cause) {
  throw error(errc::invalid_argument, "read rules of explain", object, cause);
}

/// Reads an object and rejects unknown keys: misspelt keys must not be ignored.
class reader {
 public:
  reader(const json& value, std::string name, std::initializer_list<std::string_view> keys)
      : value_(value), name_(std::move(name)) {
    if (!value.is_object()) {
      refuse(name_, "is not an object");
    }
    for (const auto& [key, each] : value.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        refuse(name_, fmt::format("unknown key \"{}\"", key));
      }
    }
  }

  template <typename Type>
  [[nodiscard]] Type get(const char* key) const {
    try {
      return value_.contains(key) ? value_.at(key).get<Type>() : Type{};
    } catch (const json::exception&) {
      refuse(name_, fmt::format("\"{}\" has the wrong type", key));
    }
  }
  [[nodiscard]] std::string text(const char* key) const {
    auto value = get<std::string>(key);
    if (value.empty()) {
      refuse(name_, fmt::format("lacks \"{}\"", key));
    }
    return value;
  }
  [[nodiscard]] std::vector<json> items(const char* key) const {
    return get<std::vector<json>>(key);
  }

 private:
  const json& value_;
  std::string name_;
};

verdict parse_verdict(const std::string& text, const std::string& where) {
  for (const verdict each :
       {verdict::ok, verdict::warning, verdict::problem, verdict::not_applicable, verdict::note}) {
    if (to_string(each) == text) {
      return each;
    }
  }
  refuse(where, fmt::format("unknown verdict \"{}\"", text));
}

void expect_check(const std::string& id, const std::string& where) {
  if (!is_check_id(id)) {
    refuse(where, fmt::format("unknown check \"{}\"", id));
  }
}

void expect_fact(const std::string& name, const std::string& where) {
  const auto names = fact_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    refuse(where, fmt::format("unknown fact \"{}\"", name));
  }
}

explain_condition parse_condition(const json& value, const std::string& where) {
  const reader from(value, where, {"check", "verdict", "fact", "text", "factor", "excludes"});
  explain_condition condition;
  condition.check = from.get<std::string>("check");
  condition.fact = from.get<std::string>("fact");
  condition.text = from.get<std::string>("text");
  condition.factor = from.get<double>("factor");
  condition.excludes = from.get<bool>("excludes");
  if (!condition.check.empty()) {
    expect_check(condition.check, where);
    condition.result = parse_verdict(from.text("verdict"), where);
  }
  if (!condition.fact.empty()) {
    expect_fact(condition.fact, where);
  }
  if (int{condition.check.empty()} + int{condition.fact.empty()} + int{condition.text.empty()} !=
      2) {
    refuse(where, "a condition is one of check, fact and text");
  }
  if (condition.excludes ? condition.factor != 0
                         : !(condition.factor > 0 && condition.factor <= 100)) {
    refuse(where, "a factor is above 0 and at most 100, and absent with \"excludes\"");
  }
  return condition;
}

explain_cause parse_cause(const json& value, const std::string& rule) {
  const reader from(
      value,
      rule,
      {"id", "prior", "text", "confirm", "fix", "when", "calls", "not_calls", "errno"});
  explain_cause cause;
  cause.id = from.text("id");
  const std::string where = rule + "/" + cause.id;
  cause.prior = from.get<double>("prior");
  cause.text = from.text("text");
  cause.confirm = from.text("confirm");
  cause.fix = from.text("fix");
  for (const json& each : from.items("when")) {
    cause.when.push_back(parse_condition(each, where));
  }
  using texts = std::vector<std::string>;
  cause.calls = from.get<texts>("calls");
  cause.not_calls = from.get<texts>("not_calls");
  cause.errnos = from.get<texts>("errno");
  for (const std::string& name : cause.errnos) {
    if (!is_errno_name(name)) {
      refuse(where, fmt::format("unknown errno \"{}\"", name));
    }
  }
  if (!(cause.prior > 0 && cause.prior <= 1)) {
    refuse(where, "a prior is above 0 and at most 1");
  }
  return cause;
}

explain_order parse_order(const json& value, const explain_rule& rule) {
  const reader from(value, rule.id, {"text", "checks", "facts", "first"});
  explain_order order;
  order.text = from.get<std::string>("text");
  for (const auto& [id, result] : from.get<std::map<std::string, std::string>>("checks")) {
    expect_check(id, rule.id);
    order.checks.emplace(id, parse_verdict(result, rule.id));
  }
  order.facts = from.get<std::vector<std::string>>("facts");
  for (const std::string& name : order.facts) {
    expect_fact(name, rule.id);
  }
  order.first = from.text("first");
  const auto is_first = [&](const explain_cause& each) { return each.id == order.first; };
  if (std::none_of(rule.causes.begin(), rule.causes.end(), is_first)) {
    refuse(rule.id, fmt::format("has no cause \"{}\"", order.first));
  }
  return order;
}

explain_rule parse_rule(const json& value) {
  const auto named_id = value.is_object() ? value.find("id") : value.end();
  const reader named(
      value,
      named_id != value.end() && named_id->is_string() ? named_id->get<std::string>() : "rule",
      {"id",
       "title",
       "about",
       "names",
       "numbers",
       "phrases",
       "alone",
       "vague",
       "causes",
       "matches",
       "unrelated",
       "orders"});
  explain_rule rule;
  rule.id = named.text("id");
  using texts = std::vector<std::string>;
  rule.title = named.text("title");
  rule.about = named.get<std::string>("about");
  rule.names = named.get<texts>("names");
  rule.numbers = named.get<std::vector<int>>("numbers");
  rule.phrases = named.get<texts>("phrases");
  rule.alone = named.get<texts>("alone");
  rule.vague = named.get<bool>("vague");
  rule.matches = named.get<texts>("matches");
  rule.unrelated = named.get<texts>("unrelated");
  std::set<std::string> ids;
  for (const json& each : named.items("causes")) {
    rule.causes.push_back(parse_cause(each, rule.id));
    if (!ids.insert(rule.causes.back().id).second) {
      refuse(rule.id, fmt::format("has cause \"{}\" twice", rule.causes.back().id));
    }
  }
  for (const json& each : named.items("orders")) {
    rule.orders.push_back(parse_order(each, rule));
  }
  if (rule.causes.empty()) {
    refuse(rule.id, "has no causes");
  }
  if (rule.names.empty() && rule.numbers.empty() && rule.phrases.empty() && rule.alone.empty()) {
    refuse(rule.id, "has no patterns");
  }
  return rule;
}

}  // namespace

bool is_check_id(std::string_view id) noexcept {
  const auto ids = check_ids();
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::vector<explain_rule> parse_explain_rules(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) {
    refuse({}, "the rules are not JSON");
  }
  std::vector<explain_rule> rules;
  std::set<std::string> ids;
  for (const json& each : reader(document, "file", {"rules"}).items("rules")) {
    rules.push_back(parse_rule(each));
    if (!ids.insert(rules.back().id).second) {
      refuse(rules.back().id, "is defined twice");
    }
  }
  return rules;
}

const std::vector<explain_rule>& explain_rules() {
  static const std::vector<explain_rule> rules = [] {
    std::vector<explain_rule> all = parse_explain_rules(explain_data());
    for (explain_rule& each : rules_of_codes(error_manual())) {
      all.push_back(std::move(each));
    }
    return all;
  }();
  return rules;
}

}  // namespace gpushm::inspect
