// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/budget.hpp"

namespace gpushm::domains {

/// No text of quotas is longer.
inline constexpr std::size_t max_quota_text_bytes = 32'768;

/// The quotas of a node as text (docs/broker.md, "Quotas"), one rule a line:
///
///     domain NAME|PREFIX* [host=SIZE] [gpu=SIZE]
///     principal [host=SIZE] [gpu=SIZE]
///     uid NUMBER [host=SIZE] [gpu=SIZE]
///
/// Thread-safety: distinct objects: safe; shared objects: safe for const functions.
class quota_rules {
 public:
  /// No rules.
  quota_rules() = default;
  /// `source` is for messages. Throws `error` (invalid_argument) naming the line.
  quota_rules(std::string_view text, const std::string& source);

  /// The quotas of a domain: `otherwise`, except what a rule names. Of several rules for domains,
  /// the one of this name applies, or else the one of the longest prefix.
  [[nodiscard]] core::quotas of(std::string_view domain, core::quotas otherwise) const;

 private:
  struct rule {
    std::optional<std::uint64_t> host_bytes;
    std::optional<std::uint64_t> gpu_bytes;
    void apply(core::quota& quota) const;
  };
  void add(std::string_view line);

  std::map<std::string, rule, std::less<>> domains_;
  std::map<std::string, rule, std::less<>> prefixes_;
  std::optional<rule> principal_;
  std::map<std::uint32_t, rule> uids_;
};

}  // namespace gpushm::domains
