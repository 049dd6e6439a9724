// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// Checks manifests against the schema of Kubernetes' objects in
/// tests/deploy/schemas/kubernetes.json. Checks the YAML, not JSON derived from it, so that
/// findings have positions and an unquoted `off` is not taken for a string. Thread-safety: shared
/// objects: safe.
class schema {
 public:
  /// Throws if `text` is not such a file.
  explicit schema(const std::string& text);

  /// Returns a line for each error that an API server would report: unknown and missing fields,
  /// wrong types, kinds that are not in the file. Fields that only servers set are unknown.
  [[nodiscard]] std::vector<std::string> check(const manifest& object) const;
  /// The Kubernetes release of the file.
  [[nodiscard]] std::string release() const { return file_.at("kubernetes"); }

 private:
  void check(const manifest& object,
             const gpushm::yaml::node& value,
             const nlohmann::json& wanted,
             const std::string& path,
             std::vector<std::string>& problems) const;
  void check_object(const manifest& object,
                    const gpushm::yaml::node& value,
                    const nlohmann::json& wanted,
                    const std::string& path,
                    std::vector<std::string>& problems) const;

  nlohmann::json file_;
};

}  // namespace gpushm_tests
