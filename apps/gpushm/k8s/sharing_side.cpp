// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/k8s/sharing_side.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

namespace gpushm::k8s {

namespace {

constexpr auto share_resources =
    std::to_array<std::string_view>({"gpushm.dev/share", "gpushm.dev/ipc"});
constexpr auto share_classes =
    std::to_array<std::string_view>({"share.gpushm.dev", "ipc.gpushm.dev"});
constexpr std::string_view host_label = "kubernetes.io/hostname";

constexpr std::string_view nvidia = "nvidia.com/";

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Prefixes of the resource names of NVIDIA's network operator and of SR-IOV plugins.
bool is_network(std::string_view name) {
  constexpr auto starts = std::to_array<std::string_view>(
      {"hostdev", "rdma", "hca", "sriov", "cx", "bf", "ib", "roce", "mlnx", "mofed", "nic"});
  return std::any_of(starts.begin(), starts.end(), [name](std::string_view each) {
    return name.starts_with(each);
  });
}

bool is_gpu(std::string_view resource) {
  return (resource.starts_with(nvidia) && !is_network(resource.substr(nvidia.size()))) ||
         resource == "amd.com/gpu" || resource.starts_with("gpu.intel.com/") ||
         resource.starts_with("gpushm.dev/gpu-");
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

/// The channel of a resource that is a place in a domain, else nullopt. The agent's first domain
/// has a name without suffix.
std::optional<std::string> domain_channel(std::string_view resource) {
  for (const std::string_view each : share_resources) {
    if (!resource.starts_with(each)) {
      continue;
    }
    const std::string_view rest = resource.substr(each.size());
    if (rest.empty()) {
      return "domain";
    }
    if (rest.front() == '-') {
      return fmt::format("domain {}", rest.substr(1));
    }
  }
  return std::nullopt;
}

/// "gpushm.dev/gpu-0", the agent's name for a single GPU, "nvidia.com/gpu-0" and
/// "nvidia.com/mig-0-1", the names of GPUs and instances in its configuration's examples: only
/// these are known to be one GPU each. Any other name may be a renamed pool.
bool is_one_gpu(std::string_view resource) {
  if (is_per_gpu_resource(resource)) {
    return true;
  }
  if (!resource.starts_with(nvidia)) {
    return false;
  }
  std::string_view name = resource.substr(nvidia.size());
  if (name.starts_with("gpu-")) {
    return is_number(name.substr(4));
  }
  if (!name.starts_with("mig-")) {
    return false;
  }
  name.remove_prefix(4);
  const auto dash = name.find('-');
  return dash != std::string_view::npos && is_number(name.substr(0, dash)) &&
         is_number(name.substr(dash + 1));
}

const claim* find_claim(const manifests& manifests,
                        bool is_template,
                        const std::string& space,
                        const std::string& name) {
  for (const claim& each : manifests.claims()) {
    if (each.is_template == is_template && each.space == space && each.name == name) {
      return &each;
    }
  }
  return nullptr;
}

bool has_class(const claim* claim, bool share) {
  return claim != nullptr &&
         std::any_of(claim->device_classes.begin(),
                     claim->device_classes.end(),
                     [share](const auto& each) { return has(share_classes, each) == share; });
}

void take_claims(sharing_side& side, const manifests& manifests) {
  for (const manifest_node& each : side.pod->spec["resourceClaims"].elements()) {
    const std::string own = each["resourceClaimName"].text();
    const std::string from = each["resourceClaimTemplateName"].text();
    const bool is_template = own.empty() && !from.empty();
    const std::string& name = is_template ? from : own;
    if (name.empty()) {
      continue;
    }
    const claim* known = find_claim(manifests, is_template, side.pod->space, name);
    const std::string key =
        fmt::format("{} {}/{}", is_template ? "template" : "claim", side.pod->space, name);
    // A claim that is not in these files may have a GPU.
    const bool has_gpu = known == nullptr ? !is_template : has_class(known, false);
    if (has_gpu) {
      side.needs_gpu = true;
      side.gpu_place = side.gpu_place.or_else(each);
    }
    if (is_template && has_class(known, true)) {
      side.channels.insert(key);
    } else if (!is_template) {
      side.claims.insert(key);
      side.channels.insert(key);
      if (has_gpu) {
        side.gpu_claims.insert(key);
      }
    }
  }
}

void take_resources(sharing_side& side, const std::set<std::string>& one_gpu_resources) {
  for (const manifest_node& container : side.pod->containers()) {
    bool has_pool = false;
    for (const char* part : {"limits", "requests"}) {
      for (const auto& [name, value] : container["resources"][part].members()) {
        if (const auto channel = domain_channel(name)) {
          side.channels.insert(*channel);
        } else if (is_gpu(name)) {
          const bool one = is_one_gpu(name) || one_gpu_resources.contains(name);
          has_pool = has_pool || !one;
          (one ? side.own_gpus : side.pools).insert(name);
          side.needs_gpu = true;
          side.gpu_place = side.gpu_place.or_else(value);
        }
      }
    }
    side.pool_containers += has_pool ? 1U : 0U;
  }
}

/// Whether a container mounts the volume writable.
bool is_written(const workload& pod, const std::string& volume) {
  for (const manifest_node& container : pod.containers()) {
    for (const manifest_node& mount : container["volumeMounts"].elements()) {
      if (mount["name"].text() == volume && !mount["readOnly"].is_true()) {
        return true;
      }
    }
  }
  return false;
}

bool selects(const manifest_node& selector, const std::map<std::string, std::string>& labels) {
  const auto value_of = [&labels](const std::string& key) {
    const auto found = labels.find(key);
    return found == labels.end() ? std::string() : found->second;
  };
  bool any = false;
  for (const auto& [key, value] : selector["matchLabels"].members()) {
    any = true;
    if (!labels.contains(key) || value_of(key) != value.text()) {
      return false;
    }
  }
  for (const manifest_node& each : selector["matchExpressions"].elements()) {
    any = true;
    const std::string key = each["key"].text();
    const auto values = each["values"].elements();
    const bool in = std::any_of(values.begin(), values.end(), [&](const manifest_node& node) {
      return node.text() == value_of(key);
    });
    const std::string operation = each["operator"].text();
    if (!labels.contains(key) || (operation == "In" && !in) ||
        (operation != "In" && operation != "Exists")) {
      return false;
    }
  }
  return any;
}

/// Whether the scheduler puts `a` only on the node of `b`.
bool follows(const workload& a, const workload& b) {
  const auto terms =
      a.spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
          .elements();
  return std::any_of(terms.begin(), terms.end(), [&](const manifest_node& term) {
    const bool in_reach = a.space == b.space || term["namespaces"] || term["namespaceSelector"];
    return in_reach && term["topologyKey"].text() == host_label &&
           selects(term["labelSelector"], b.labels);
  });
}

bool share_any(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(
      a.begin(), a.end(), [&b](const std::string& each) { return b.contains(each); });
}

bool same_text(const manifest_node& a, const manifest_node& b) {
  return !a.text().empty() && a.text() == b.text();
}

}  // namespace

bool is_sharing_resource(std::string_view resource) {
  return is_gpu(resource) || domain_channel(resource).has_value();
}

bool is_per_gpu_resource(std::string_view resource) {
  constexpr std::string_view own = "gpushm.dev/gpu-";
  return resource.starts_with(own) && is_number(resource.substr(own.size()));
}

bool may_carry_handles(const manifest_node& host_path) {
  const std::string type = host_path["type"].text();
  const std::string path = host_path["path"].text();
  if (type == "File" || type == "FileOrCreate" || type == "CharDevice" || type == "BlockDevice") {
    return false;
  }
  const auto below = [&path](std::string_view directory) {
    return path.starts_with(directory) &&
           (path.size() == directory.size() || path[directory.size()] == '/');
  };
  constexpr auto of_the_system = std::to_array<std::string_view>({"/bin",
                                                                  "/boot",
                                                                  "/etc",
                                                                  "/lib",
                                                                  "/lib64",
                                                                  "/proc",
                                                                  "/sbin",
                                                                  "/sys",
                                                                  "/usr",
                                                                  "/var/lib/containers",
                                                                  "/var/lib/docker",
                                                                  "/var/log"});
  return std::none_of(of_the_system.begin(), of_the_system.end(), below);
}

sharing_side side_of(const workload& pod,
                     const manifests& manifests,
                     const std::set<std::string>& one_gpu_resources) {
  sharing_side side;
  side.pod = &pod;
  take_resources(side, one_gpu_resources);
  take_claims(side, manifests);
  for (const manifest_node& volume : pod.spec["volumes"].elements()) {
    const std::string path = volume["hostPath"]["path"].text();
    if (!path.empty() && may_carry_handles(volume["hostPath"])) {
      side.channels.insert("path " + path);
      if (is_written(pod, volume["name"].text())) {
        side.written.insert("path " + path);
      }
    }
  }
  if (pod.spec["hostIPC"].is_true()) {
    side.channels.insert("host IPC");
  }
  return side;
}

bool same_node(const sharing_side& a, const sharing_side& b) {
  return share_any(a.claims, b.claims) ||
         same_text(a.pod->spec["nodeName"], b.pod->spec["nodeName"]) ||
         same_text(a.pod->spec["nodeSelector"][host_label],
                   b.pod->spec["nodeSelector"][host_label]) ||
         follows(*a.pod, *b.pod) || follows(*b.pod, *a.pod);
}

bool same_gpu(const sharing_side& a, const sharing_side& b) {
  return share_any(a.gpu_claims, b.gpu_claims) || share_any(a.own_gpus, b.own_gpus);
}

}  // namespace gpushm::k8s
