// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/json.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace gpushm::inspect {

using nlohmann::json;

void to_json(json& document, const measured_pair& pair) {
  document = {{"from", pair.from},
              {"to", pair.to},
              {"bytes_per_second", pair.bytes_per_second},
              {"copy_bytes", pair.copy_bytes},
              {"latency_ns", pair.latency_ns},
              {"mapping_ns", pair.mapping_ns},
              {"mapped_bytes", pair.mapped_bytes},
              {"problem", pair.problem}};
}

void from_json(const json& document, measured_pair& pair) {
  // Limited to what fits into a table cell.
  const auto positive = [&](const char* key) {
    const double number = document.at(key).get<double>();
    return std::isfinite(number) && number > 0 ? std::min(number, 1e15) : 0;
  };
  pair.from = document.at("from").get<std::string>();
  pair.to = document.at("to").get<std::string>();
  pair.bytes_per_second = positive("bytes_per_second");
  pair.copy_bytes = document.at("copy_bytes").get<std::uint64_t>();
  pair.latency_ns = positive("latency_ns");
  pair.mapping_ns = positive("mapping_ns");
  pair.mapped_bytes = document.at("mapped_bytes").get<std::uint64_t>();
  pair.problem = document.at("problem").get<std::string>();
}

}  // namespace gpushm::inspect
