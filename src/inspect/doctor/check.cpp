// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/check.hpp"

#include <algorithm>
#include <array>

#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect {

std::string_view to_string(verdict value) noexcept {
  switch (value) {
    case verdict::ok:
      return "ok";
    case verdict::warning:
      return "warning";
    case verdict::problem:
      return "problem";
    case verdict::not_applicable:
      return "not applicable";
    case verdict::note:
      return "note";
  }
  return "unknown";
}

namespace {

struct rule {
  std::string_view id;
  std::string_view section;
  check (*apply)(const facts&);
};

constexpr auto every =
    std::to_array<rule>({{"platform", "driver", rules::platform},
                         {"libcuda", "driver", rules::libcuda},
                         {"driver-match", "driver", rules::driver_match},
                         {"cuda-compat", "driver", rules::cuda_compat},
                         {"cuinit", "driver", rules::cuinit},
                         {"nvml", "driver", rules::nvml},
                         {"device-nodes", "devices", rules::device_nodes},
                         {"gpu-nodes", "devices", rules::gpu_nodes},
                         {"uvm-major", "devices", rules::uvm_major},
                         {"visible-devices", "devices", rules::visible_devices},
                         {"cdi", "devices", rules::cdi},
                         {"other-gpus", "devices", rules::other_gpus},
                         {"gpus", "GPUs", rules::gpus},
                         {"vmm-support", "GPUs", rules::vmm_support},
                         {"rdma", "GPUs", rules::rdma},
                         {"mig", "GPUs", rules::mig},
                         {"compute-mode", "GPUs", rules::compute_mode},
                         {"mps", "GPUs", rules::mps},
                         {"virtualization", "GPUs", rules::virtualization},
                         {"persistence", "GPUs", rules::persistence},
                         {"peer-access", "GPUs", rules::peer_access},
                         {"imex", "GPUs", rules::imex},
                         {"xid", "GPUs", rules::xid},
                         {"container", "isolation", rules::container},
                         {"namespaces", "isolation", rules::namespaces},
                         {"pid-namespace", "isolation", rules::pid_namespace},
                         {"user-namespace", "isolation", rules::user_namespace},
                         {"host-namespaces", "isolation", rules::host_namespaces},
                         {"privileges", "isolation", rules::privileges},
                         {"selinux", "isolation", rules::selinux},
                         {"ptrace", "isolation", rules::ptrace},
                         {"shm", "isolation", rules::shm},
                         {"limits", "isolation", rules::limits},
                         {"broker", "sharing", rules::broker},
                         {"waiting-streams", "sharing", rules::waiting_streams}});

constexpr auto ids_of_all() {
  std::array<std::string_view, every.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = every[i].id;
  }
  return all;
}
constexpr auto ids = ids_of_all();

/// A problem and its consequences; deeper causes come first.
struct root {
  std::string_view id;
  std::vector<std::string_view> consequences;
  std::string_view only_if = {};  ///< part of the problem's `seen`; empty: always
};

const std::vector<root>& roots() {
  static const std::vector<root> roots{
      {"selinux", {"device-nodes", "gpu-nodes", "cuinit", "nvml", "gpus", "mig"}, "it may not use"},
      {"selinux", {"broker"}, "it may not connect"},
      {"uvm-major", {"device-nodes", "cuinit", "gpus"}},
      {"driver-match", {"cuinit", "nvml", "gpus"}},
      {"device-nodes", {"cuinit", "gpus"}},
      {"gpu-nodes", {"cuinit"}},
      {"mig", {"cuinit"}},
  };
  return roots;
}

bool is_wrong(const check& check) {
  return check.result == verdict::problem || check.result == verdict::warning;
}

void follow(check& check, std::string_view root) {
  check.result = verdict::note;
  check.follows = root;
  check.why = "follows from " + std::string(root);
  check.remedy.clear();
}

/// Turns consequences of a problem into notes: acting on them would not help.
void mark_consequences(std::vector<check>& checks) {
  const auto find = [&checks](std::string_view id) {
    return std::find_if(
        checks.begin(), checks.end(), [id](const check& check) { return check.id == id; });
  };
  for (const root& each : roots()) {
    const auto cause = find(each.id);
    if (cause->result != verdict::problem || cause->seen.find(each.only_if) == std::string::npos) {
      continue;
    }
    for (const std::string_view id : each.consequences) {
      const auto found = find(id);
      if (is_wrong(*found)) {
        follow(*found, each.id);
      }
    }
  }
}

/// Checks of the usual driver's parts, which machines without it do not have.
void mark_parts_of_usual_driver(const facts& facts, std::vector<check>& checks) {
  if (facts.platform.empty()) {
    return;
  }
  static constexpr auto parts = std::to_array<std::string_view>({"driver-match",
                                                                 "device-nodes",
                                                                 "gpu-nodes",
                                                                 "uvm-major",
                                                                 "nvml",
                                                                 "gpus",
                                                                 "mig",
                                                                 "persistence",
                                                                 "imex"});
  for (check& each : checks) {
    if (!is_wrong(each)) {
      continue;
    }
    if (std::find(parts.begin(), parts.end(), each.id) != parts.end()) {
      follow(each, "platform");
    } else if (std::string remedy = rules::platform_remedy(facts, each.id); !remedy.empty()) {
      each.remedy = std::move(remedy);
    }
  }
}

}  // namespace

std::span<const std::string_view> check_ids() noexcept {
  return ids;
}

std::vector<check> examine(const facts& facts) {
  std::vector<check> checks;
  for (const rule& each : every) {
    check result = each.apply(facts);
    result.id = each.id;
    result.section = each.section;
    checks.push_back(std::move(result));
  }
  mark_parts_of_usual_driver(facts, checks);
  mark_consequences(checks);
  return checks;
}

std::string driver_problem(const facts& facts) {
  const auto shown = [](const gpu_facts& gpu) { return !gpu.cuda.empty(); };
  if (!rules::driver_expected(facts) || std::any_of(facts.gpus.begin(), facts.gpus.end(), shown)) {
    return {};
  }
  for (const auto apply : {rules::cuinit, rules::libcuda}) {
    const check result = apply(facts);
    if (result.result == verdict::problem) {
      return result.seen;
    }
  }
  return {};
}

}  // namespace gpushm::inspect
