// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/weights/version_names.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "base/segments/names.hpp"

namespace gpushm::cli {

namespace {

[[noreturn]] void throw_usage(const error& why, std::string_view object) {
  throw usage_error(why.code(), why.operation(), object, why.cause(), why.next_step());
}

}  // namespace

base::versioned_name parse_version_argument(std::string_view operation, std::string_view text) {
  if (!base::is_versioned_name(text)) {
    throw usage_error(errc::invalid_argument,
                      operation,
                      text,
                      "this is not a version",
                      "write NAME@NUMBER or NAME@ALIAS, such as w/llama@7 or w/llama@latest");
  }
  try {
    return base::parse_versioned_name(operation, text);
  } catch (const error& why) {
    throw_usage(why, text);
  }
}

void check_base_argument(std::string_view operation, const std::string& name) {
  if (base::is_versioned_name(name)) {
    throw usage_error(errc::invalid_argument,
                      operation,
                      name,
                      "this is a version or an alias, not the name that has them",
                      fmt::format("pass \"{}\"", name.substr(0, name.find('@'))));
  }
  try {
    base::check_name(operation, name);
  } catch (const error& why) {
    throw_usage(why, name);
  }
}

void check_alias_argument(std::string_view operation, const std::string& alias) {
  if (!base::is_alias(alias)) {
    throw usage_error(errc::invalid_argument,
                      operation,
                      alias,
                      "this is not the name of an alias",
                      "write a lower-case letter and up to 31 lower-case letters, digits and "
                      "hyphens, without the name and \"@\"");
  }
}

std::string version_text(std::string_view name, std::uint64_t number) {
  return fmt::format("{}@{}", name, number);
}

std::string alias_text(std::string_view name, std::string_view alias) {
  return fmt::format("{}@{}", name, alias);
}

std::vector<std::string> aliases_of(const version_info& version) {
  std::vector<std::string> result;
  std::string_view rest = version.aliases;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    result.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return result;
}

std::uint64_t target_of(const std::vector<version_info>& versions, std::string_view alias) {
  for (const version_info& each : versions) {
    const auto aliases = aliases_of(each);
    if (std::find(aliases.begin(), aliases.end(), alias) != aliases.end()) {
      return each.number;
    }
  }
  return 0;
}

std::vector<std::string> bases_of(const std::vector<segment_info>& segments) {
  std::vector<std::string> result;
  for (const segment_info& each : segments) {
    if (base::is_versioned_name(each.name)) {
      result.push_back(each.name.substr(0, each.name.find('@')));
    }
  }
  // Other names may be between those of one base: "w/x", "w/x.y@1", "w/x@1".
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void throw_no_versions(client& broker, std::string_view operation, const std::string& name) {
  near_match nearest(name);
  for (const std::string& each : bases_of(broker.list())) {
    if (each != name && !nearest.consider(each)) {
      break;
    }
  }
  throw error(errc::no_such_segment,
              operation,
              name,
              "no version of this name exists in domain " + broker.broker().domain,
              nearest.best().empty() ? "`gpushm weights ls` lists the names that have versions"
                                     : fmt::format("did you mean \"{}\"?", nearest.best()));
}

}  // namespace gpushm::cli
