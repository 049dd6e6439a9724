// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/start_counts.hpp"

#include <array>
#include <optional>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/report/log.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

/// As many numbers, with a space after each.
std::optional<start_counts> parsed(std::string_view text) {
  std::array<std::uint64_t, 3> numbers{};
  for (std::uint64_t& each : numbers) {
    const auto end = text.find(' ');
    const auto number = base::number<std::uint64_t>(text.substr(0, end));
    if (end == std::string_view::npos || !number) {
      return std::nullopt;
    }
    each = *number;
    text.remove_prefix(end + 1);
  }
  return text.empty() ? std::optional(start_counts{numbers[0], numbers[1], numbers[2]})
                      : std::nullopt;
}

}  // namespace

start_counts read_start_counts(const std::string& path) {
  const auto text = base::read_small_file(path);
  if (!text) {
    return {};
  }
  const auto document = parsed(*text);
  if (!document) {
    base::log(log_level::warning,
              path + " is damaged: starts and takeovers are counted from 0 again");
  }
  return document.value_or(start_counts{});
}

void add_start(start_counts& counts, const std::string& path, keeper::start_reason why) {
  ++counts.starts;
  counts.takeovers += why == keeper::start_reason::takeover ? 1 : 0;
  counts.failed_takeovers += why == keeper::start_reason::failed_takeover ? 1 : 0;
  try {
    base::staged_file file("count this start", path);
    file.write(std::to_string(counts.starts) + ' ' + std::to_string(counts.takeovers) + ' ' +
               std::to_string(counts.failed_takeovers) + ' ');
    file.commit();
  } catch (const error& failure) {
    base::log(log_level::warning, failure.what());
  }
}

}  // namespace gpushm::domains
