// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/text/text.hpp"
#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

std::string file_name(const cdi_facts& document) {
  return document.path.substr(document.path.rfind('/') + 1);
}

/// Returns the kind of a document; if it cannot be read, the kind of those that have its name;
/// empty if that is unknown.
std::string kind_of(const cdi_facts& document) {
  if (!document.kind.empty()) {
    return document.kind;
  }
  const std::string name = file_name(document);
  for (const std::string_view maker : {"nvidia", "amd", "intel"}) {
    if (name.starts_with(fmt::format("{}.com-gpu.", maker)) ||
        (name.starts_with(fmt::format("{}.", maker)) &&
         !name.starts_with(fmt::format("{}.com", maker)))) {
      return fmt::format("{}.com/gpu", maker);
    }
  }
  return {};
}

std::string vendor_of(const cdi_facts& document) {
  const std::string kind = kind_of(document);
  return kind.substr(0, kind.find('/'));
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

/// The document that takes precedence over one in /etc/cdi; null: none.
const cdi_facts* superseding(const facts& facts, const cdi_facts& document) {
  const auto found =
      std::find_if(facts.cdi.begin(), facts.cdi.end(), [&document](const cdi_facts& each) {
        return is_volatile(each) && each.kind == kind_of(document) && each.problem.empty();
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

struct gpu_maker {
  std::string_view vendor;     ///< as `--vendor` has it, and with ".com" in the kind
  std::string_view name;       ///< "AMD"
  std::string_view generator;  ///< the command of the maker that writes documents
};
constexpr std::array<gpu_maker, 2> other_makers{
    {{"amd", "AMD", "amd-ctk cdi generate"}, {"intel", "Intel", "intel-cdi-specs-generator gpu"}}};

std::string domain_of(const gpu_maker& maker) {
  return fmt::format("{}.com", maker.vendor);
}

/// AMD or Intel, if the document is for one of its devices; else null.
const gpu_maker* maker_of(const cdi_facts& document) {
  const auto found =
      std::find_if(other_makers.begin(), other_makers.end(), [&](const gpu_maker& each) {
        return is_of(document, domain_of(each));
      });
  return found == other_makers.end() ? nullptr : found;
}

/// Whether this machine has GPUs that the document is for.
bool is_of_other_gpus_here(const facts& facts, const cdi_facts& document) {
  const gpu_maker* const maker = maker_of(document);
  return maker != nullptr &&
         std::any_of(facts.other_gpus.begin(),
                     facts.other_gpus.end(),
                     [&](const other_gpu_facts& each) { return each.vendor == maker->vendor; });
}

std::string remedy_of_maker(const facts& facts, const cdi_facts& document, const gpu_maker& maker) {
  if (kind_of(document) != domain_of(maker) + "/gpu") {
    return fmt::format(
        "write it again with {}'s program that wrote it (container toolkit, device plugin or DRA "
        "driver); gpushm describes {}.com/gpu only",
        maker.name,
        maker.vendor);
  }
  if (const cdi_facts* other = superseding(facts, document)) {
    return fmt::format("rm {}: {} defines these devices", document.path, other->path);
  }
  const std::string unless_gone =
      is_of_other_gpus_here(facts, document)
          ? ""
          : fmt::format("rm {}, if this machine has no {} GPU; else: ", document.path, maker.name);
  const std::string check = "; then: gpushm cdi validate " + document.path;
  if (is_volatile(document) && file_name(document) == domain_of(maker) + "-gpu.yaml") {
    return fmt::format("{}gpushm cdi refresh --vendor {}   (with --watch it follows changes){}",
                       unless_gone,
                       maker.vendor,
                       check);
  }
  return fmt::format("{}gpushm cdi generate --vendor {} --output={}   (or {}, if that wrote it){}",
                     unless_gone,
                     maker.vendor,
                     document.path,
                     maker.generator,
                     check);
}

}  // namespace

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
  if (const gpu_maker* const maker = maker_of(document)) {
    return remedy_of_maker(facts, document, *maker);
  }
  if (document.kind.empty()) {
    return "correct it, or write it again with the program that wrote it";
  }
  return fmt::format(
      "regenerate it with the tool that wrote it, for {}; it belongs to neither NVIDIA nor gpushm",
      document.kind);
}

check cdi(const facts& facts) {
  if (facts.cdi.empty()) {
    return finding(verdict::not_applicable, "no CDI document in /etc/cdi or /var/run/cdi");
  }
  std::size_t devices = 0;
  const cdi_facts* wrong = nullptr;
  // Documents for NVIDIA's GPUs or domains take precedence over those for others' GPUs here.
  const auto rank = [&](const cdi_facts& document) {
    return is_of_gpus(document) ? 2 : is_of_other_gpus_here(facts, document) ? 1 : 0;
  };
  for (const cdi_facts& each : facts.cdi) {
    devices += each.devices.size();
    if (!each.problem.empty() && (wrong == nullptr || rank(each) > rank(*wrong))) {
      wrong = &each;
    }
  }
  if (wrong != nullptr) {
    const std::string kind = kind_of(*wrong);
    const bool foreign = rank(*wrong) == 0 && !kind.empty();
    return finding(foreign ? verdict::note : verdict::warning,
                   fmt::format("{}: {}", wrong->path, wrong->problem),
                   foreign ? fmt::format("it is for {}, so no NVIDIA GPU depends on it", kind)
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
