// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/name_strategy.hpp"

namespace gpushm::discover {

std::string_view to_string(name_strategy strategy) {
  switch (strategy) {
    case name_strategy::index:
      return "index";
    case name_strategy::uuid:
      return "uuid";
    case name_strategy::type_index:
      return "type-index";
  }
  return "unknown";
}

std::optional<name_strategy> parse_name_strategy(std::string_view text) {
  for (const auto each : {name_strategy::index, name_strategy::uuid, name_strategy::type_index}) {
    if (to_string(each) == text) {
      return each;
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::discover
