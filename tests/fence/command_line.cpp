// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/command_line.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace gpushm::fence_rounds {

arguments parse(int argc, char** argv, arguments defaults) {
  const bool is_proof = defaults.jobs != 0;
  arguments result = std::move(defaults);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&]() -> std::string {
      if (++i >= argc) {
        throw std::runtime_error(argument + " needs a value");
      }
      return argv[i];
    };
    if (argument == "--rounds") {
      result.rounds = static_cast<unsigned>(std::stoul(value()));
    } else if (is_proof && argument == "--jobs") {
      result.jobs = static_cast<unsigned>(std::stoul(value()));
    } else if (argument == "--only") {
      std::istringstream names(value());
      for (std::string name; std::getline(names, name, ',');) {
        result.only.push_back(name);
      }
    } else if (argument == "--json") {
      result.json = value();
    } else if (is_proof && argument == "--torch") {
      result.torch = true;
    } else if (argument == "--list") {
      result.list = true;
    } else {
      throw std::runtime_error("unknown argument " + argument);
    }
  }
  return result;
}

nlohmann::ordered_json spread(std::vector<double> values) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  if (!values.empty()) {
    std::sort(values.begin(), values.end());
    result["min"] = values.front();
    result["median"] = values[values.size() / 2];
    result["max"] = values.back();
  }
  return result;
}

}  // namespace gpushm::fence_rounds
