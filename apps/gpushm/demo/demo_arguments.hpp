// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace gpushm::cli {

/// Which data the demo damages, for tests of its checks.
enum class corrupt_stage : std::uint8_t { none, fill, rewrite, survive };

/// The values of `--corrupt`.
[[nodiscard]] inline std::map<std::string, corrupt_stage> corrupt_stages() {
  return {{"fill", corrupt_stage::fill},
          {"rewrite", corrupt_stage::rewrite},
          {"survive", corrupt_stage::survive}};
}

struct demo_arguments {
  std::string device = "auto";
  std::string consumer_device;  ///< empty: the segment's GPU
  std::optional<std::uint64_t> size_bytes;
  std::chrono::milliseconds timeout{0};  ///< for the whole demo; zero: depends on the size
  bool isolated = false;
  bool channel = false;  ///< show a channel instead of a segment
  bool json = false;
  corrupt_stage corrupt = corrupt_stage::none;
};

}  // namespace gpushm::cli
