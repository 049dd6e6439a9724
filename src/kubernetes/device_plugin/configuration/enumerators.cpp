// SPDX-License-Identifier: Apache-2.0
// Enumerators of settings, and resource names.
#include "kubernetes/device_plugin/configuration/enumerators.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/configuration/configuration.hpp"

namespace gpushm::device_plugin {

namespace {

template <typename Value>
using spelling = std::pair<std::string_view, Value>;

constexpr std::array<spelling<mig_strategy>, 3> mig_spellings{{{"none", mig_strategy::none},
                                                               {"single", mig_strategy::single},
                                                               {"mixed", mig_strategy::mixed}}};
constexpr std::array<spelling<device_list_strategy>, 4> list_spellings{
    {{"envvar", device_list_strategy::envvar},
     {"volume-mounts", device_list_strategy::volume_mounts},
     {"cdi-annotations", device_list_strategy::cdi_annotations},
     {"cdi-cri", device_list_strategy::cdi_cri}}};
constexpr std::array<spelling<device_id_strategy>, 2> id_spellings{
    {{"uuid", device_id_strategy::uuid}, {"index", device_id_strategy::index}}};
constexpr std::array<spelling<replica_policy>, 2> policy_spellings{
    {{"distributed", replica_policy::distributed}, {"packed", replica_policy::packed}}};

template <typename Spellings, typename Value>
std::string_view spelling_of(const Spellings& spellings, Value value) {
  const auto found = std::find_if(spellings.begin(), spellings.end(), [value](const auto& each) {
    return each.second == value;
  });
  return found == spellings.end() ? "unknown" : found->first;
}

template <typename Value, typename Spellings>
std::optional<Value> value_of(const Spellings& spellings, std::string_view text) {
  const auto found = std::find_if(
      spellings.begin(), spellings.end(), [text](const auto& each) { return each.first == text; });
  return found == spellings.end() ? std::nullopt : std::optional(found->second);
}

template <typename Spellings>
std::string list_of(const Spellings& spellings) {
  std::string text;
  for (std::size_t i = 0; i < spellings.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 == spellings.size() ? " or " : ", ").append(spellings[i].first);
  }
  return text;
}

[[noreturn]] void throw_invalid_value(std::string_view setting,
                                      std::string_view text,
                                      const std::string& choice) {
  throw error(errc::invalid_argument,
              fmt::format("set {}", setting),
              text,
              "invalid value",
              "write " + choice);
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

constexpr std::size_t max_name_bytes = 63;
constexpr std::size_t max_domain_bytes = 253;

std::optional<std::string> domain_problem(std::string_view domain) {
  if (domain.size() > max_domain_bytes) {
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
      return "the part before its slash is not a DNS name of lower-case letters, digits and dashes";
    }
    start = end + 1;
  }
  if (domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")) {
    return "Kubernetes reserves the domain kubernetes.io";
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(mig_strategy value) {
  return spelling_of(mig_spellings, value);
}
std::string_view to_string(device_list_strategy value) {
  return spelling_of(list_spellings, value);
}
std::string_view to_string(device_id_strategy value) {
  return spelling_of(id_spellings, value);
}
std::string_view to_string(replica_policy value) {
  return spelling_of(policy_spellings, value);
}

std::optional<mig_strategy> mig_strategy_of(std::string_view text) {
  return value_of<mig_strategy>(mig_spellings, text);
}
std::optional<device_id_strategy> device_id_strategy_of(std::string_view text) {
  return value_of<device_id_strategy>(id_spellings, text);
}
std::optional<device_list_strategy> device_list_strategy_of(std::string_view text) {
  return value_of<device_list_strategy>(list_spellings, text);
}
std::string mig_choice() {
  return list_of(mig_spellings);
}
std::string device_id_choice() {
  return list_of(id_spellings);
}
std::string device_list_choice() {
  return list_of(list_spellings);
}

mig_strategy parse_mig_strategy(std::string_view text, std::string_view setting) {
  if (const auto value = mig_strategy_of(text)) {
    return *value;
  }
  throw_invalid_value(setting, text, mig_choice());
}

device_id_strategy parse_device_id_strategy(std::string_view text, std::string_view setting) {
  if (const auto value = device_id_strategy_of(text)) {
    return *value;
  }
  throw_invalid_value(setting, text, device_id_choice());
}

replica_policy parse_replica_policy(std::string_view text, std::string_view setting) {
  if (const auto value = value_of<replica_policy>(policy_spellings, text)) {
    return *value;
  }
  throw_invalid_value(setting, text, list_of(policy_spellings));
}

std::set<device_list_strategy> parse_device_list_strategies(std::string_view text,
                                                            std::string_view setting) {
  std::set<device_list_strategy> strategies;
  for (const std::string_view each : base::split(text, ",")) {
    const auto value = device_list_strategy_of(base::trim(each));
    if (!value) {
      throw_invalid_value(setting, base::trim(each), device_list_choice());
    }
    strategies.insert(*value);
  }
  if (strategies.empty()) {
    throw_invalid_value(setting, text, device_list_choice());
  }
  return strategies;
}

std::string whole_resource_name(std::string_view name) {
  return fmt::format("{}{}", name.find('/') == std::string_view::npos ? "nvidia.com/" : "", name);
}

std::optional<std::string> resource_name_problem(std::string_view whole_name) {
  const std::size_t slash = whole_name.find('/');
  if (slash == std::string_view::npos) {
    return "it has no domain";
  }
  if (auto why = domain_problem(whole_name.substr(0, slash))) {
    return why;
  }
  const std::string_view name = whole_name.substr(slash + 1);
  if (name.empty()) {
    return "the part after its slash is empty";
  }
  if (name.size() > max_name_bytes) {
    return "the part after its slash is longer than 63 characters";
  }
  const bool valid = is_letter_or_digit(name.front()) && is_letter_or_digit(name.back()) &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
                     });
  if (!valid) {
    return "the part after its slash must be letters, digits, dashes, dots and underscores, and "
           "begin and end with a letter or digit";
  }
  return std::nullopt;
}

}  // namespace gpushm::device_plugin
