// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpushm::fence_rounds {

/// Arguments of both programs; the last two only of `gpushm_fence_proof`.
struct arguments {
  unsigned rounds = 0;
  std::vector<std::string> only = {};
  std::string json = {};
  bool list = false;
  unsigned jobs = 0;  ///< default 0: the program accepts neither
  bool torch = false;
};

/// Overrides `defaults` with a command line. Throws std::runtime_error that names the invalid
/// argument.
[[nodiscard]] arguments parse(int argc, char** argv, arguments defaults);

/// Minimum, median and maximum; empty if there are no values.
[[nodiscard]] nlohmann::ordered_json spread(std::vector<double> values);

}  // namespace gpushm::fence_rounds
