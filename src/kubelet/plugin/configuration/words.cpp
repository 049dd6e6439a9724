// SPDX-License-Identifier: Apache-2.0
// The words that settings have, and names of resources.
#include "kubelet/plugin/configuration/words.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.hpp"
#include "gpushm/error.hpp"
#include "kubelet/plugin/configuration/configuration.hpp"

namespace gpushm::plugin {

namespace {

template <typename Value>
using word = std::pair<std::string_view, Value>;

constexpr std::array<word<mig_strategy>, 3> mig_words{{{"none", mig_strategy::none},
                                                       {"single", mig_strategy::single},
                                                       {"mixed", mig_strategy::mixed}}};
constexpr std::array<word<device_list_strategy>, 4> list_words{
    {{"envvar", device_list_strategy::envvar},
     {"volume-mounts", device_list_strategy::volume_mounts},
     {"cdi-annotations", device_list_strategy::cdi_annotations},
     {"cdi-cri", device_list_strategy::cdi_cri}}};
constexpr std::array<word<device_id_strategy>, 2> id_words{
    {{"uuid", device_id_strategy::uuid}, {"index", device_id_strategy::index}}};
constexpr std::array<word<replica_policy>, 2> policy_words{
    {{"distributed", replica_policy::distributed}, {"packed", replica_policy::packed}}};

template <typename Words, typename Value>
std::string_view word_of(const Words& words, Value value) {
  const auto found = std::find_if(
      words.begin(), words.end(), [value](const auto& each) { return each.second == value; });
  return found == words.end() ? "unknown" : found->first;
}

template <typename Value, typename Words>
std::optional<Value> value_of(const Words& words, std::string_view text) {
  const auto found = std::find_if(
      words.begin(), words.end(), [text](const auto& each) { return each.first == text; });
  return found == words.end() ? std::nullopt : std::optional(found->second);
}

template <typename Words>
std::string list_of(const Words& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ").append(words[i].first);
  }
  return text;
}

[[noreturn]] void throw_no_word(std::string_view what,
                                std::string_view text,
                                const std::string& choice) {
  throw error(errc::invalid_argument,
              std::string("set ").append(what),
              text,
              "no such choice",
              std::string("write ").append(choice));
}

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter_or_digit(char c) {
  return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z');
}

constexpr std::size_t most_name_bytes = 63;
constexpr std::size_t most_domain_bytes = 253;

std::optional<std::string> why_no_domain(std::string_view domain) {
  if (domain.size() > most_domain_bytes) {
    return "its domain is longer than 253 characters";
  }
  for (std::size_t start = 0; start <= domain.size();) {
    const std::size_t end = std::min(domain.find('.', start), domain.size());
    const std::string_view label = domain.substr(start, end - start);
    const bool valid = !label.empty() && label.front() != '-' && label.back() != '-' &&
                       std::all_of(label.begin(), label.end(), [](char c) {
                         return is_lower(c) || is_digit(c) || c == '-';
                       });
    if (!valid) {
      return "what is before its slash is no DNS name of lower-case letters, digits and dashes";
    }
    start = end + 1;
  }
  if (domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")) {
    return "Kubernetes keeps the domain kubernetes.io to itself";
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(mig_strategy value) {
  return word_of(mig_words, value);
}
std::string_view to_string(device_list_strategy value) {
  return word_of(list_words, value);
}
std::string_view to_string(device_id_strategy value) {
  return word_of(id_words, value);
}
std::string_view to_string(replica_policy value) {
  return word_of(policy_words, value);
}

std::optional<mig_strategy> mig_strategy_of(std::string_view text) {
  return value_of<mig_strategy>(mig_words, text);
}
std::optional<device_id_strategy> device_id_strategy_of(std::string_view text) {
  return value_of<device_id_strategy>(id_words, text);
}
std::optional<device_list_strategy> device_list_strategy_of(std::string_view text) {
  return value_of<device_list_strategy>(list_words, text);
}
std::string mig_choice() {
  return list_of(mig_words);
}
std::string device_id_choice() {
  return list_of(id_words);
}
std::string device_list_choice() {
  return list_of(list_words);
}

mig_strategy parse_mig_strategy(std::string_view text, std::string_view what) {
  if (const auto value = mig_strategy_of(text)) {
    return *value;
  }
  throw_no_word(what, text, mig_choice());
}

device_id_strategy parse_device_id_strategy(std::string_view text, std::string_view what) {
  if (const auto value = device_id_strategy_of(text)) {
    return *value;
  }
  throw_no_word(what, text, device_id_choice());
}

replica_policy parse_replica_policy(std::string_view text, std::string_view what) {
  if (const auto value = value_of<replica_policy>(policy_words, text)) {
    return *value;
  }
  throw_no_word(what, text, list_of(policy_words));
}

std::set<device_list_strategy> parse_device_list_strategies(std::string_view text,
                                                            std::string_view what) {
  std::set<device_list_strategy> found;
  for (const std::string_view each : base::split(text, ",")) {
    const auto value = device_list_strategy_of(base::trim(each));
    if (!value) {
      throw_no_word(what, base::trim(each), device_list_choice());
    }
    found.insert(*value);
  }
  if (found.empty()) {
    throw_no_word(what, text, device_list_choice());
  }
  return found;
}

std::string whole_resource_name(std::string_view name) {
  return std::string(name.find('/') == std::string_view::npos ? "nvidia.com/" : "").append(name);
}

std::optional<std::string> why_no_resource(std::string_view whole_name) {
  const std::size_t slash = whole_name.find('/');
  if (slash == std::string_view::npos) {
    return "it has no domain";
  }
  if (auto why = why_no_domain(whole_name.substr(0, slash))) {
    return why;
  }
  const std::string_view name = whole_name.substr(slash + 1);
  if (name.empty()) {
    return "nothing is after its slash";
  }
  if (name.size() > most_name_bytes) {
    return "what is after its slash is longer than 63 characters";
  }
  const bool valid = is_letter_or_digit(name.front()) && is_letter_or_digit(name.back()) &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
                     });
  if (!valid) {
    return "what is after its slash must be letters, digits, dashes, dots and underscores, and "
           "begin and end with a letter or digit";
  }
  return std::nullopt;
}

}  // namespace gpushm::plugin
