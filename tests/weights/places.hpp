// SPDX-License-Identifier: Apache-2.0
// Where models of tests are, and the processes that load and open them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_tests {

enum class where : std::uint8_t { host, fake, real };
inline std::string name_of(const testing::TestParamInfo<where>& info) {
  return info.param == where::host ? "host" : info.param == where::fake ? "fake" : "real";
}
[[nodiscard]] inline std::string device_of(where place) {
  return place == where::host ? "host" : "0";
}

[[nodiscard]] inline gpushm_testing::child start(
    std::vector<std::string> argv, const std::optional<gpushm::fake::fake_gpus>& gpus) {
  gpushm_testing::spawn_options wanted;
  wanted.argv = std::move(argv);
  if (gpus) {
    for (const auto& [name, value] : gpus->environment()) {
      wanted.env.emplace_back(name, value);
    }
  }
  return gpushm_testing::child::start(wanted);
}

/// "ready GENERATION" or "failed WHY": that line of an agent's or engine's output; empty: neither
/// yet.
[[nodiscard]] inline std::string result_in(const std::string& output) {
  for (const char* const begin : {"ready ", "failed "}) {
    if (const auto at = output.find(begin); at != std::string::npos) {
      const auto end = output.find('\n', at);
      return end == std::string::npos ? "" : output.substr(at, end - at);
    }
  }
  return "";
}

/// Of all segments and timelines.
[[nodiscard]] inline std::vector<std::string> names_of(gpushm::client& client) {
  std::vector<std::string> result;
  for (const auto& each : client.list("")) {
    if (each.backend != gpushm::backend::signals) {
      result.push_back(each.name);
    }
  }
  return result;
}

}  // namespace gpushm_tests
