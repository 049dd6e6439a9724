// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/k8s/manifest.hpp"

namespace gpushm::k8s {

/// A setting that a pod requests but does not need, or something that it needs but is not
/// guaranteed.
struct finding {
  std::string file;
  int line = 0;  ///< from 1; 0: the file as a whole
  int column = 0;
  std::string rule;                ///< a stable id: "host-pid"
  std::string object;              ///< "Pod ns/name, container x"; empty: no object
  std::string why;                 ///< sentences without the last full stop
  std::vector<std::string> write;  ///< what to write instead, in YAML; empty: remove it
  bool operator==(const finding&) const = default;
};

/// Collects the rules' findings.
class report {
 public:
  /// Further findings are dropped.
  static constexpr std::size_t max_findings = 1'000;

  void add(finding finding) {
    if (findings_.size() < max_findings) {
      findings_.push_back(std::move(finding));
    }
  }
  void add(const workload& workload,
           const manifest_node& where,
           std::string_view rule,
           std::string why,
           std::vector<std::string> write,
           const std::string& container = {}) {
    std::string object = workload.title();
    if (!container.empty()) {
      object.append(", container ").append(container);
    }
    const manifest_node place = where.or_else(workload.object);
    add({workload.file,
         place.line(),
         place.column(),
         std::string(rule),
         std::move(object),
         std::move(why),
         std::move(write)});
  }
  [[nodiscard]] std::vector<finding> take() { return std::move(findings_); }

 private:
  std::vector<finding> findings_;
};

}  // namespace gpushm::k8s
