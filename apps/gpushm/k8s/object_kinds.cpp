// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/object_kinds.hpp"

#include <algorithm>
#include <array>

#include "base/text/text.hpp"

namespace gpushm::k8s {

namespace {

std::string_view group_of(std::string_view api_version) {
  const std::size_t slash = api_version.find('/');
  return slash == std::string_view::npos ? std::string_view() : api_version.substr(0, slash);
}

// Groups whose objects describe pods that others create.
constexpr auto pattern_domains = std::to_array<std::string_view>({"apiextensions.k8s.io",
                                                                  "admissionregistration.k8s.io",
                                                                  "gatekeeper.sh",
                                                                  "kubewarden.io",
                                                                  "kyverno.io"});

// Groups none of whose kinds creates pods.
constexpr auto domains_without_pods = std::to_array<std::string_view>(
    {"cert-manager.io",       "cilium.io",           "externaldns.k8s.io",
     "external-secrets.io",   "extensions.istio.io", "inference.networking.x-k8s.io",
     "k8s.cni.cncf.io",       "karpenter.k8s.aws",   "karpenter.sh",
     "kueue.x-k8s.io",        "metallb.io",          "networking.istio.io",
     "nfd.k8s-sigs.io",       "projectcalico.org",   "scheduling.run.ai",
     "scheduling.volcano.sh", "scheduling.x-k8s.io", "security.istio.io",
     "telemetry.istio.io",    "traefik.io"});

struct kind_name {
  std::string_view group;
  std::string_view kind;
};

// Kinds without pods of groups that also have kinds with pods.
constexpr auto kinds_without_pods =
    std::to_array<kind_name>({{"bitnami.com", "SealedSecret"},
                              {"keda.sh", "ClusterTriggerAuthentication"},
                              {"keda.sh", "ScaledObject"},
                              {"keda.sh", "TriggerAuthentication"},
                              {"monitoring.coreos.com", "AlertmanagerConfig"},
                              {"monitoring.coreos.com", "PodMonitor"},
                              {"monitoring.coreos.com", "Probe"},
                              {"monitoring.coreos.com", "PrometheusRule"},
                              {"monitoring.coreos.com", "ScrapeConfig"},
                              {"monitoring.coreos.com", "ServiceMonitor"}});

}  // namespace

bool is_builtin_group(std::string_view api_version) {
  const std::string_view group = group_of(api_version);
  return group.find('.') == std::string_view::npos || base::is_in_domain(group, "k8s.io");
}

kind_role role_of(std::string_view api_version, std::string_view kind) {
  const std::string_view group = group_of(api_version);
  const auto in = [&group](const auto& domains) {
    return std::any_of(domains.begin(), domains.end(), [&group](std::string_view each) {
      return base::is_in_domain(group, each);
    });
  };
  if (in(pattern_domains) || kind == "PodSecurityPolicy") {
    return kind_role::patterns;
  }
  const bool listed =
      std::any_of(kinds_without_pods.begin(), kinds_without_pods.end(), [&](const kind_name& each) {
        return each.group == group && each.kind == kind;
      });
  return is_builtin_group(api_version) || in(domains_without_pods) || listed ? kind_role::no_pods
                                                                             : kind_role::pods;
}

}  // namespace gpushm::k8s
