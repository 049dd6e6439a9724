// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpushm::fence_rounds {

/// What both programs can be asked for; the last two by `gpushm_fence_proof` alone.
struct arguments {
  unsigned rounds = 0;
  std::vector<std::string> only = {};
  std::string json = {};
  bool list = false;
  unsigned jobs = 0;  ///< 0 as a default: the program has neither
  bool torch = false;
};

/// Changes `defaults` by the words of a command line. Throws std::runtime_error that names the word
/// that is wrong.
[[nodiscard]] arguments parse(int argc, char** argv, arguments defaults);

/// Their least, median and largest; empty for none.
[[nodiscard]] nlohmann::ordered_json spread(std::vector<double> values);

}  // namespace gpushm::fence_rounds
