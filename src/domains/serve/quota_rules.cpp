// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/quota_rules.hpp"

#include <fmt/core.h>

#include <vector>

#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr std::string_view operation = "read quotas";

[[noreturn]] void refuse(std::string_view cause) {
  throw error(
      errc::invalid_argument,
      {},
      {},
      cause,
      "write `domain NAME`, `domain PREFIX*`, `principal` or `uid NUMBER`, and host=SIZE or "
      "gpu=SIZE, for instance: domain default host=8GiB gpu=40GiB");
}

void refuse_if(bool repeated, std::string_view line) {
  if (repeated) {
    refuse(fmt::format("\"{}\" repeats an earlier line", base::printable(line)));
  }
}

}  // namespace

quota_rules::quota_rules(std::string_view text, const std::string& source) {
  if (text.size() > max_quota_text_bytes) {
    throw error(errc::invalid_argument,
                operation,
                source,
                fmt::format("it is longer than {} bytes", max_quota_text_bytes),
                "use prefixes of names: domain claim-* gpu=20GiB");
  }
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const auto end = text.find('\n');
    const std::string_view line = base::trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    try {
      add(line);
    } catch (const error& why) {
      throw error(why.code(),
                  operation,
                  source,
                  fmt::format("line {}: {}", number, why.cause()),
                  why.next_step());
    }
  }
}

void quota_rules::add(std::string_view line) {
  const std::vector<std::string_view> words = base::split(line, " \t\r");
  const std::string_view kind = words.front();
  const bool is_named = kind == "domain" || kind == "uid";
  if (!is_named && kind != "principal") {
    refuse(fmt::format("\"{}\" is not a level", base::printable(kind)));
  }
  const std::size_t first = is_named ? 2 : 1;
  if (words.size() <= first) {
    refuse(fmt::format("\"{}\" has no quota", base::printable(line)));
  }
  rule given;
  for (std::size_t i = first; i < words.size(); ++i) {
    const bool is_host = words[i].starts_with("host=");
    const auto size = is_host || words[i].starts_with("gpu=")
                          ? base::parse_size(words[i].substr(words[i].find('=') + 1))
                          : std::nullopt;
    std::optional<std::uint64_t>& to = is_host ? given.host_bytes : given.gpu_bytes;
    if (!size || to) {
      refuse(fmt::format("\"{}\" is not a size of host memory or of a GPU's, or is the second one",
                         base::printable(words[i])));
    }
    to = size;
  }
  if (kind == "principal") {
    refuse_if(principal_.has_value(), line);
    principal_ = given;
  } else if (kind == "uid") {
    const auto uid = base::number<std::uint32_t>(words[1]);
    if (!uid) {
      refuse(fmt::format("\"{}\" is not the number of a uid", base::printable(words[1])));
    }
    refuse_if(!uids_.emplace(*uid, given).second, line);
  } else {
    std::string_view name = words[1];
    const bool is_prefix = name.ends_with('*');
    if (is_prefix) {
      name.remove_suffix(1);
    }
    refuse_if(!(is_prefix ? prefixes_ : domains_).emplace(name, given).second, line);
  }
}

void quota_rules::rule::apply(core::quota& quota) const {
  quota.host_bytes = host_bytes.value_or(quota.host_bytes);
  quota.gpu_bytes = gpu_bytes.value_or(quota.gpu_bytes);
}

core::quotas quota_rules::of(std::string_view domain, core::quotas otherwise) const {
  const rule* best = nullptr;
  std::size_t longest = 0;
  for (const auto& [prefix, each] : prefixes_) {
    if (domain.starts_with(prefix) && (best == nullptr || prefix.size() >= longest)) {
      best = &each;
      longest = prefix.size();
    }
  }
  if (const auto at = domains_.find(domain); at != domains_.end()) {
    best = &at->second;
  }
  if (best != nullptr) {
    best->apply(otherwise.domain);
  }
  if (principal_) {
    principal_->apply(otherwise.principal);
  }
  for (const auto& [uid, each] : uids_) {
    each.apply(otherwise.uids[uid]);
  }
  return otherwise;
}

}  // namespace gpushm::domains
