// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "inspect/explain/explain.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

namespace {

struct named_fact {
  std::string_view name;
  std::string_view words;  ///< as evidence
  bool (*holds)(const facts&);
};

template <typename Test>
bool any_gpu(const facts& facts, Test test) {
  return std::any_of(facts.gpus.begin(), facts.gpus.end(), test);
}

bool nearly_full(const gpu_facts& gpu) {
  return gpu.nvml && gpu.nvml->total_bytes > 0 && gpu.nvml->free_bytes < gpu.nvml->total_bytes / 20;
}

constexpr std::array<named_fact, 16> known_facts{{
    {"in-container",
     "this process is in a container",
     [](const facts& facts) { return !facts.self.container.runtime.empty(); }},
    {"in-pod",
     "this process is in a pod",
     [](const facts& facts) {
       return !facts.self.container.pod_uid.empty() || !facts.self.container.pod_name.empty();
     }},
    // The PID of `gpushm explain` itself is irrelevant: it is not the program that failed.
    {"own-pid-namespace",
     "this PID namespace is private: its main program is PID 1, like the other container's",
     [](const facts& facts) {
       const auto found = facts.self.namespaces.find("pid");
       return found != facts.self.namespaces.end() && found->second.host == false;
     }},
    {"gvisor", "this is a gVisor sandbox", [](const facts& facts) { return facts.gvisor; }},
    {"several-gpus",
     "this machine has several GPUs",
     [](const facts& facts) { return facts.gpus.size() > 1; }},
    {"no-gpus", "no GPU is visible here", [](const facts& facts) { return facts.gpus.empty(); }},
    {"some-gpus-hidden",
     "this process may not open some of the GPUs here",
     [](const facts& facts) {
       return any_gpu(facts, [](const gpu_facts& gpu) { return gpu.open_error.value_or(0) != 0; });
     }},
    {"mig",
     "a GPU here is in MIG mode",
     [](const facts& facts) {
       return any_gpu(facts, [](const gpu_facts& gpu) { return gpu.sharing == "mig"; });
     }},
    {"mps", "an MPS daemon runs here", [](const facts& facts) { return facts.mps; }},
    {"vgpu",
     "a GPU here is virtual",
     [](const facts& facts) {
       return any_gpu(facts, [](const gpu_facts& gpu) { return gpu.sharing == "vgpu"; });
     }},
    {"no-module",
     "no NVIDIA kernel module is visible here",
     [](const facts& facts) { return facts.module_version.empty(); }},
    {"small-shm",
     "/dev/shm here has 64 MiB or less",
     [](const facts& facts) {
       return facts.shm_bytes > 0 && facts.shm_bytes <= 64UL * 1024 * 1024;
     }},
    {"no-imex",
     "there is no IMEX channel here",
     [](const facts& facts) { return facts.imex_channels.empty(); }},
    {"xids",
     "the kernel log has Xid lines",
     [](const facts& facts) { return !facts.xids.empty(); }},
    {"hides-devices",
     "CUDA_VISIBLE_DEVICES is set here",
     [](const facts& facts) { return facts.self.variables.count("CUDA_VISIBLE_DEVICES") > 0; }},
    {"memory-full",
     "a GPU here has less than 5% of its memory free",
     [](const facts& facts) { return any_gpu(facts, nearly_full); }},
}};

constexpr std::array<std::string_view, known_facts.size()> make_names_of_facts() {
  std::array<std::string_view, known_facts.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = known_facts[i].name;
  }
  return names;
}
constexpr auto names_of_facts = make_names_of_facts();

}  // namespace

std::span<const std::string_view> fact_names() {
  return names_of_facts;
}

std::string_view words_of_fact(std::string_view name) noexcept {
  for (const named_fact& fact : known_facts) {
    if (fact.name == name) {
      return fact.words;
    }
  }
  return {};
}

situation situation_of(const facts& facts, std::vector<check> checks) {
  situation here{{}, std::move(checks)};
  for (const named_fact& each : known_facts) {
    if (each.holds(facts)) {
      here.facts.emplace(each.name);
    }
  }
  return here;
}

bool may_have_failed_here(const facts& facts) {
  return !facts.gpus.empty() && !facts.self.container.runtime.empty();
}

}  // namespace gpushm::inspect
