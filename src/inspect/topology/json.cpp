// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/json.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace gpushm::inspect {

using nlohmann::json;

void to_json(json& to, const measured_pair& from) {
  to = {{"from", from.from},
        {"to", from.to},
        {"bytes_per_second", from.bytes_per_second},
        {"copy_bytes", from.copy_bytes},
        {"latency_ns", from.latency_ns},
        {"mapping_ns", from.mapping_ns},
        {"mapped_bytes", from.mapped_bytes},
        {"problem", from.problem}};
}

void from_json(const json& from, measured_pair& to) {
  // Limited to what fits into a table cell.
  const auto positive = [&](const char* key) {
    const double number = from.at(key).get<double>();
    return std::isfinite(number) && number > 0 ? std::min(number, 1e15) : 0;
  };
  to.from = from.at("from").get<std::string>();
  to.to = from.at("to").get<std::string>();
  to.bytes_per_second = positive("bytes_per_second");
  to.copy_bytes = from.at("copy_bytes").get<std::uint64_t>();
  to.latency_ns = positive("latency_ns");
  to.mapping_ns = positive("mapping_ns");
  to.mapped_bytes = from.at("mapped_bytes").get<std::uint64_t>();
  to.problem = from.at("problem").get<std::string>();
}

}  // namespace gpushm::inspect
