// SPDX-License-Identifier: Apache-2.0
#include "inspect/check.hpp"

#include <array>

#include "inspect/rules.hpp"

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
  }
  return "unknown";
}

std::vector<check> examine(const facts& all) {
  struct rule {
    const char* id;
    const char* section;
    check (*apply)(const facts&);
  };
  static constexpr auto every =
      std::to_array<rule>({{"libcuda", "driver", rules::libcuda},
                           {"driver-match", "driver", rules::driver_match},
                           {"cuda-compat", "driver", rules::cuda_compat},
                           {"cuinit", "driver", rules::cuinit},
                           {"nvml", "driver", rules::nvml},
                           {"device-nodes", "devices", rules::device_nodes},
                           {"gpu-nodes", "devices", rules::gpu_nodes},
                           {"uvm-major", "devices", rules::uvm_major},
                           {"visible-devices", "devices", rules::visible_devices},
                           {"cdi", "devices", rules::cdi},
                           {"gpus", "GPUs", rules::gpus},
                           {"vmm-support", "GPUs", rules::vmm_support},
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
                           {"ptrace", "isolation", rules::ptrace},
                           {"shm", "isolation", rules::shm},
                           {"limits", "isolation", rules::limits},
                           {"broker", "sharing", rules::broker}});
  std::vector<check> checks;
  for (const rule& each : every) {
    check made = each.apply(all);
    made.id = each.id;
    made.section = each.section;
    checks.push_back(std::move(made));
  }
  return checks;
}

}  // namespace gpushm::inspect
