// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kubernetes/api_client/client.hpp"
#include "tests/support/fake_kube_api/fake_kube_api.hpp"

namespace gpushm_tests {

inline constexpr const char* slices = "/apis/resource.k8s.io/v1/resourceslices";
inline constexpr const char* nodes = "/api/v1/nodes";

[[nodiscard]] inline nlohmann::json slice(const std::string& name,
                                          const std::string& node = "n1",
                                          const std::string& driver = "gpushm.dev") {
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceSlice"},
          {"metadata", {{"name", name}}},
          {"spec",
           {{"driver", driver},
            {"nodeName", node},
            {"pool", {{"name", node}, {"generation", 1}, {"resourceSliceCount", 1}}},
            {"devices", {{{"name", "share-0"}}}}}}};
}

[[nodiscard]] inline std::string name_of(const nlohmann::json& object) {
  return object.at("metadata").at("name");
}
[[nodiscard]] inline std::vector<std::string> names_of(const nlohmann::json& items) {
  std::vector<std::string> names;
  for (const auto& each : items) {
    names.push_back(name_of(each));
  }
  return names;
}

/// The text of the `gpushm::error` that `act` throws.
template <typename Act>
[[nodiscard]] std::string failure_of(Act&& act) {
  try {
    act();
  } catch (const gpushm::error& failure) {
    return failure.what();
  }
  return "no error";
}

}  // namespace gpushm_tests
