// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// The fields that Kubernetes' objects have, as tests/deploy/schemas/kubernetes.json lists them,
/// and whether a manifest keeps to them. On the YAML itself and not on JSON made of it, so that
/// findings have a place, and so that an unquoted `off` is seen to be no text.
///
/// Shared objects: safe.
class schema {
 public:
  /// Throws for what is no such file.
  explicit schema(const std::string& text);

  /// A line for each thing that an API server would refuse: unknown and missing fields, values of
  /// another type, a kind that is not in the file. Fields of the server's own are unknown.
  [[nodiscard]] std::vector<std::string> check(const manifest& object) const;
  /// The Kubernetes release that the file is of.
  [[nodiscard]] std::string release() const { return file_.at("kubernetes"); }

 private:
  void check(const manifest& object,
             const gpushm::yaml::node& value,
             const nlohmann::json& wanted,
             const std::string& path,
             std::vector<std::string>& found) const;
  void check_object(const manifest& object,
                    const gpushm::yaml::node& value,
                    const nlohmann::json& wanted,
                    const std::string& path,
                    std::vector<std::string>& found) const;

  nlohmann::json file_;
};

}  // namespace gpushm_tests
