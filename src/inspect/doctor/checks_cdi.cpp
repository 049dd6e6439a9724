// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "base/text/text.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

std::string vendor_of(const cdi_facts& document) {
  return document.kind.substr(0, document.kind.find('/'));
}

/// "nvidia.com", "k8s.gpu.nvidia.com".
bool is_of(const cdi_facts& document, std::string_view vendor) {
  return base::is_in_domain(vendor_of(document), vendor);
}

bool is_of_gpus(const cdi_facts& document) {
  return is_of(document, "nvidia.com") || is_of(document, "gpushm.dev");
}

bool is_volatile(const cdi_facts& document) {
  return document.path.starts_with("/var/run/cdi/") || document.path.starts_with("/run/cdi/");
}

std::string file_name(const cdi_facts& document) {
  return document.path.substr(document.path.rfind('/') + 1);
}

/// The document that takes precedence over one in /etc/cdi; null: none.
const cdi_facts* superseding(const facts& facts, const cdi_facts& document) {
  const auto found =
      std::find_if(facts.cdi.begin(), facts.cdi.end(), [&document](const cdi_facts& each) {
        return is_volatile(each) && each.kind == document.kind && each.problem.empty();
      });
  return is_volatile(document) || found == facts.cdi.end() ? nullptr : &*found;
}

/// For documents of the kind nvidia.com/…, which several programs write.
std::string nvidia_remedy(const facts& facts, const cdi_facts& document) {
  if (const cdi_facts* other = superseding(facts, document)) {
    return fmt::format(
        "rm {}: {} defines these devices, and is written again when the driver "
        "changes",
        document.path,
        other->path);
  }
  const std::string again = "gpushm cdi generate --output=" + document.path;
  if (!is_volatile(document)) {
    return fmt::format(
        "{}   (nothing else writes files in /etc/cdi again; better: rm {}, and "
        "systemctl enable --now gpushm-cdi-refresh, which writes to /var/run/cdi)",
        again,
        document.path);
  }
  if (file_name(document).starts_with("nvidia.com-gpu.")) {
    return "systemctl restart gpushm-cdi-refresh, which writes it   (without that service: " +
           again + ")";
  }
  if (file_name(document).starts_with("nvidia.")) {
    return "systemctl restart nvidia-cdi-refresh, which writes it   (without that service: " +
           again + ")";
  }
  return again + "   (or by the program that wrote it)";
}

/// The document's writer, and how to make it write again.
std::string cdi_remedy(const facts& facts, const cdi_facts& document) {
  if (document.problem.find(" is also in ") != std::string::npos) {
    return "remove one of the two files, or the device from one of them";
  }
  const std::string vendor = vendor_of(document);
  if (vendor == "nvidia.com") {
    return nvidia_remedy(facts, document);
  }
  if (vendor == "k8s.device-plugin.nvidia.com") {
    return "restart the pod of NVIDIA's device plugin on this node, which writes it (kubectl "
           "delete "
           "pod; its DaemonSet creates another)";
  }
  if (vendor.starts_with("k8s.") && is_of(document, "nvidia.com")) {
    return "restart the pod of NVIDIA's DRA driver on this node, which writes it; delete the file "
           "of a claim that no pod uses";
  }
  if (is_of(document, "nvidia.com")) {
    return "restart the pod of NVIDIA's container toolkit on this node (or nvidia-cdi-refresh), "
           "which writes it";
  }
  if (vendor == "gpushm.dev") {
    const char* command = document.kind == "gpushm.dev/ipc" ? "ipc" : "share";
    const std::string again = fmt::format("gpushm cdi {} --output={}", command, document.path);
    return is_volatile(document)
               ? "restart the node's agent (kubectl -n gpushm-system rollout restart "
                 "daemonset/gpushmd), or without one: " +
                     again
               : again;
  }
  if (is_of(document, "gpushm.dev")) {
    return "restart the node's agent, which writes it: kubectl -n gpushm-system rollout restart "
           "daemonset/gpushmd";
  }
  return fmt::format(
      "regenerate it with the tool that wrote it{}{}; it belongs to neither NVIDIA nor gpushm",
      document.kind.empty() ? "" : ", for ",
      document.kind);
}

}  // namespace

check cdi(const facts& facts) {
  if (facts.cdi.empty()) {
    return finding(verdict::not_applicable, "no CDI document in /etc/cdi or /var/run/cdi");
  }
  std::size_t devices = 0;
  const cdi_facts* wrong = nullptr;
  for (const cdi_facts& each : facts.cdi) {
    devices += each.devices.size();
    // Documents for GPUs or domains take precedence over others.
    if (!each.problem.empty() && (wrong == nullptr || (is_of_gpus(each) && !is_of_gpus(*wrong)))) {
      wrong = &each;
    }
  }
  if (wrong != nullptr) {
    const bool foreign = !is_of_gpus(*wrong) && !wrong->kind.empty();
    return finding(foreign ? verdict::note : verdict::warning,
                   fmt::format("{}: {}", wrong->path, wrong->problem),
                   foreign
                       ? fmt::format("it is for {}, so no NVIDIA GPU depends on it", wrong->kind)
                       : "container engines then report \"unresolvable CDI devices\", or start "
                         "containers without the GPU",
                   cdi_remedy(facts, *wrong));
  }
  return finding(verdict::ok,
                 fmt::format("{} {}, {} devices",
                             facts.cdi.size(),
                             facts.cdi.size() == 1 ? "document" : "documents",
                             devices));
}

}  // namespace gpushm::inspect::rules
