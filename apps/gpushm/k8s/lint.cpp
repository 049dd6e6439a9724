// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/lint.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "apps/gpushm/k8s/rules.hpp"

namespace gpushm::k8s {

std::vector<finding> lint(const manifests& manifests, const lint_options& options) {
  report out;
  std::map<std::string, std::size_t> order;
  for (const unreadable& each : manifests.problems()) {
    order.emplace(each.file, order.size());
    out.add({each.file, each.line, each.column, "syntax", {}, each.text, {}});
  }
  for (const unread_object& each : manifests.unread()) {
    order.emplace(each.file, order.size());
    if (!options.ignored_kinds.contains(each.kind)) {
      out.add({each.file, each.line, each.column, "kind-not-read", each.object, each.why, {}});
    }
  }
  for (const workload& pod : manifests.workloads()) {
    order.emplace(pod.file, order.size());
    for (const pod_rule& rule : pod_rules()) {
      rule.check(pod, out);
    }
    for (const manifest_node& container : pod.containers()) {
      for (const container_rule& rule : container_rules()) {
        rule.check(pod, container, out);
      }
    }
  }
  check_sharing(manifests, options, out);
  std::vector<finding> findings = out.take();
  std::stable_sort(findings.begin(), findings.end(), [&order](const finding& a, const finding& b) {
    return std::tuple(order.at(a.file), a.line, a.column) <
           std::tuple(order.at(b.file), b.line, b.column);
  });
  return findings;
}

}  // namespace gpushm::k8s
