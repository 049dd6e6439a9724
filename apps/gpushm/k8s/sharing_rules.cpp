// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "apps/gpushm/k8s/rules.hpp"
#include "apps/gpushm/k8s/sharing_side.hpp"

namespace gpushm::k8s {

namespace {

// Bounds the quadratic comparison of pairs.
constexpr std::size_t max_sides = 500;

/// The other pod of a finding, and the number of further pods that share with both.
struct partner {
  const workload* pod = nullptr;
  std::size_t more = 0;
};

std::string pair_text(const partner& other) {
  return fmt::format("This and {}{}",
                     other.pod->title(),
                     other.more > 0 ? fmt::format(" (and {} more)", other.more) : "");
}

/// What guarantees one GPU in this cluster.
struct gpu_advice {
  std::string text;
  std::vector<std::string> write;
};

/// `per_gpu`: the device plugin offers each GPU as a resource.
gpu_advice same_gpu_advice(const sharing_side& side, bool per_gpu) {
  const std::string replaced =
      side.pools.empty() ? std::string() : fmt::format(", in place of {}", *side.pools.begin());
  if (per_gpu) {
    return {"Request one GPU's resource in both" + replaced + ", or use one ResourceClaim in both",
            {"resources:", "  limits:", "    gpushm.dev/gpu-0: 1"}};
  }
  return {"Use one ResourceClaim in both" + replaced, claim_lines()};
}

void report_gpu(const sharing_side& side, const partner& other, bool per_gpu, report& out) {
  gpu_advice advice = same_gpu_advice(side, per_gpu);
  out.add(*side.pod,
          side.gpu_place,
          "gpu-not-promised",
          fmt::format(
              "{} can share memory only on one GPU that both may use, and nothing guarantees them "
              "the same GPU: each gets any GPU of its node, even with a device plugin's replicas. "
              "{} (on nodes with a single GPU: --one-gpu-nodes)",
              pair_text(other),
              advice.text),
          std::move(advice.write));
}

void report_node(const sharing_side& side, const partner& other, report& out) {
  // A label of the other pod, if it has any.
  const auto first = other.pod->labels.begin();
  const bool has_label = first != other.pod->labels.end();
  out.add(*side.pod,
          side.pod->spec["affinity"].or_else(side.pod->object["metadata"]["name"]),
          "node-not-promised",
          fmt::format("{} share within a node, and nothing guarantees them the same node: "
                      "many nodes have a label for GPU nodes. Use one ResourceClaim in "
                      "both, or add a pod affinity for a label of the other to one",
                      pair_text(other)),
          {"affinity:",
           "  podAffinity:",
           "    requiredDuringSchedulingIgnoredDuringExecution:",
           "    - labelSelector:",
           "        matchLabels:",
           has_label ? fmt::format("          {}: {}", first->first, first->second)
                     : "          gpushm.example/pair: NAME",
           "      topologyKey: kubernetes.io/hostname"});
}

void report_template(const sharing_side& side, const partner& other, report& out) {
  out.add(*side.pod,
          side.pod->spec["resourceClaims"],
          "claim-not-shared",
          fmt::format(
              "{} use one ResourceClaimTemplate: each pod then gets its own claim and domain, and "
              "neither sees the other's memory. Create a ResourceClaim and use it in both",
              pair_text(other)),
          {"resourceClaims:", "- name: shared", "  resourceClaimName: shared"});
}

void check_containers(const sharing_side& side, bool one_gpu_nodes, bool per_gpu, report& out) {
  const bool shares = !side.channels.empty() || side.pod->spec["shareProcessNamespace"].is_true();
  if (side.pool_containers > 1 && shares && !one_gpu_nodes) {
    gpu_advice advice = same_gpu_advice(side, per_gpu);
    out.add(*side.pod,
            side.gpu_place,
            "gpu-not-promised",
            "Two containers of this pod request a GPU each and get different GPUs; if the node's "
            "GPUs are replicated, they may get the same GPU. " +
                advice.text,
            std::move(advice.write));
  }
}

/// The earlier pod with the most guarantees in common with `index`, else the first: deterministic,
/// and the most likely partner.
partner partner_of(const std::vector<const sharing_side*>& group, std::size_t index) {
  std::size_t best = 0;
  int best_promises = -1;
  for (std::size_t i = 0; i < index; ++i) {
    const int promises = (same_node(*group[i], *group[index]) ? 1 : 0) +
                         (same_gpu(*group[i], *group[index]) ? 1 : 0);
    if (promises > best_promises) {
      best = i;
      best_promises = promises;
    }
  }
  return {group[best]->pod, group.size() - 2};
}

/// Checks the pods that share a channel: each, except the first, must be guaranteed the node and
/// the GPU of one of the others.
void check_group(const std::string& channel,
                 const std::vector<const sharing_side*>& group,
                 bool one_gpu_nodes,
                 bool per_gpu,
                 report& out) {
  const auto writes = [&](const sharing_side* each) { return each->written.contains(channel); };
  if (channel.starts_with("path ") && std::none_of(group.begin(), group.end(), writes)) {
    return;  // a path that no pod writes carries nothing
  }
  for (std::size_t at = 1; at < group.size(); ++at) {
    const sharing_side& side = *group[at];
    const partner other = partner_of(group, at);
    if (channel.starts_with("template ")) {
      report_template(side, other, out);
      continue;
    }
    const auto with_any = [&](auto&& promised) {
      return std::any_of(group.begin(), group.end(), [&](const sharing_side* each) {
        return each != &side && promised(*each, side);
      });
    };
    if (!with_any(same_node)) {
      report_node(side, other, out);
    }
    if (!one_gpu_nodes && !with_any(same_gpu)) {
      report_gpu(side, other, per_gpu, out);
    }
  }
}

}  // namespace

std::vector<std::string> claim_lines() {
  return {"resourceClaims:  # of each pod",
          "- name: gpu",
          "  resourceClaimName: shared",
          "containers:",
          "- resources:  # without nvidia.com/gpu",
          "    claims: [{name: gpu}]",
          "---",
          "apiVersion: resource.k8s.io/v1",
          "kind: ResourceClaim",
          "metadata: {name: shared}",
          "spec:",
          "  devices:",
          "    requests:",
          "    - {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}"};
}

void check_sharing(const manifests& manifests, const lint_options& options, report& out) {
  const bool one_gpu_nodes = options.one_gpu_nodes;
  std::vector<sharing_side> sides;
  for (const workload& each : manifests.workloads()) {
    if (sides.size() < max_sides) {
      sides.push_back(side_of(each, manifests, options.one_gpu_resources));
    }
  }
  const bool per_gpu =
      options.per_gpu_resources ||
      std::any_of(sides.begin(), sides.end(), [](const sharing_side& each) {
        return std::any_of(each.own_gpus.begin(), each.own_gpus.end(), is_per_gpu_resource);
      });
  for (const sharing_side& each : sides) {
    check_containers(each, one_gpu_nodes, per_gpu, out);
  }
  std::map<std::string, std::vector<const sharing_side*>> groups;
  for (const sharing_side& each : sides) {
    for (const std::string& channel : each.channels) {
      if (each.needs_gpu || channel.starts_with("template ")) {
        groups[channel].push_back(&each);
      }
    }
  }
  // A pair may share several channels: report each problem once.
  report report;
  for (const auto& [channel, group] : groups) {
    check_group(channel, group, one_gpu_nodes, per_gpu, report);
  }
  std::vector<finding> reported;
  for (finding& each : report.take()) {
    const bool again =
        std::any_of(reported.begin(), reported.end(), [&each](const finding& finding) {
          return finding.rule == each.rule && finding.object == each.object &&
                 finding.file == each.file;
        });
    if (!again) {
      reported.push_back(each);
      out.add(std::move(each));
    }
  }
}

}  // namespace gpushm::k8s
