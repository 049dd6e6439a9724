// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/ipc.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/text/size_text.hpp"

extern "C" {
#include "ipc/numbers.h"
}

namespace gpushm::inspect {

namespace {

constexpr std::string_view library_name = "libgpushm-ipc.so";
constexpr const char* how_to_load =
    "start the container with --device gpushm.dev/ipc=DOMAIN, or the program with \"gpushm run -- "
    "PROGRAM\"";
/// The driver's file of events.
constexpr std::uint64_t event_file_bytes = 80UL << 10U;

bool names_library(const preload_entry& entry) {
  return entry.path.substr(entry.path.rfind('/') + 1) == library_name;
}

std::string source_of(const preload_entry& entry) {
  return entry.from_file ? "/etc/ld.so.preload" : "LD_PRELOAD";
}

check library(const ipc_facts& facts) {
  const auto entry = std::find_if(facts.entries.begin(), facts.entries.end(), names_library);
  std::string others;
  for (const preload_entry& each : facts.entries) {
    if (!names_library(each)) {
      others += (others.empty() ? "" : ", ") + each.path + " (" + source_of(each) + ")";
    }
  }
  const std::string beside = others.empty() ? "" : "; also preloaded: " + others;
  if (!facts.loaded.empty()) {
    return finding(verdict::ok,
                   fmt::format("{} is loaded{}{}",
                               facts.loaded,
                               entry == facts.entries.end() ? "" : " by " + source_of(*entry),
                               beside));
  }
  if (entry != facts.entries.end()) {
    return finding(
        verdict::problem,
        fmt::format("{} names {}, which is not loaded{}",
                    source_of(*entry),
                    entry->path,
                    entry->problem.empty() ? "" : ": " + entry->problem),
        "programs here behave as without it",
        entry->problem.empty()
            ? "LD_DEBUG=libs,files true 2>&1 | grep libgpushm-ipc   (the loader's reason)"
            : how_to_load);
  }
  return finding(verdict::problem,
                 (facts.installed.empty() ? "libgpushm-ipc.so is neither preloaded nor found here"
                                          : facts.installed + " is not preloaded") +
                     beside,
                 "programs here behave as without it: handles of a process with an equal PID fail "
                 "with \"invalid device context\"",
                 how_to_load);
}

/// The two numbers of "2.36"; zeros if it is not a version.
std::pair<int, int> version_of(std::string_view text) {
  std::pair<int, int> version{0, 0};
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec == std::errc() && major.ptr != end) {
    std::from_chars(major.ptr + 1, end, version.second);
  }
  return version;
}

check loader(const ipc_facts& facts) {
  std::string musl;
  for (const std::string& each : facts.other_loaders) {
    musl += (musl.empty() ? "" : ", ") + each;
  }
  if (version_of(facts.glibc) < version_of(oldest_glibc)) {
    return finding(verdict::problem,
                   fmt::format("glibc {}", facts.glibc.empty() ? "not found" : facts.glibc),
                   fmt::format("libgpushm-ipc.so needs glibc {} or newer", oldest_glibc),
                   "use a newer image (Debian 10, Ubuntu 20.04, UBI 8 or newer)");
  }
  if (facts.secure) {
    return finding(verdict::warning,
                   "glibc " + facts.glibc + "; this program runs with other rights than its caller",
                   "the library is off in set-uid programs and in those with file capabilities",
                   "run the GPU program without these");
  }
  if (!musl.empty()) {
    return finding(verdict::note,
                   fmt::format("glibc {}, and {}", facts.glibc, musl),
                   "programs that use the other loader, and static programs, are not changed");
  }
  return finding(verdict::ok, "glibc " + facts.glibc);
}

check switched(const ipc_facts& facts) {
  if (facts.switched_off) {
    return finding(verdict::problem,
                   "GPUSHM_IPC=0",
                   "the library is loaded, but changes nothing",
                   "unset GPUSHM_IPC");
  }
  return finding(verdict::ok, "on");
}

check domain(const ipc_facts& facts) {
  const std::string chosen =
      facts.chosen_domain.empty() ? "" : " (GPUSHM_IPC_DOMAIN=" + facts.chosen_domain + ")";
  if (facts.domain.reachable) {
    return finding(verdict::ok,
                   fmt::format("domain \"{}\" at {}{}; {} {} registered by programs of all its "
                               "containers",
                               facts.domain.domain,
                               facts.domain.socket,
                               chosen,
                               facts.domain.segments,
                               facts.domain.segments == 1 ? "descriptor" : "descriptors"));
  }
  return finding(
      verdict::warning,
      "none" + chosen + ": " + facts.domain.problem,
      "memory handles work; events (only with GPUSHM_IPC_EVENTS=complete, by waits of the "
      "exporter) "
      "and descriptors that programs fetch by PID (expandable segments, UCX) do not",
      "mount one domain into both containers: --device gpushm.dev/ipc=DOMAIN; with several, choose "
      "one: GPUSHM_IPC_DOMAIN=DOMAIN");
}

check shm(const ipc_facts& facts) {
  if (!facts.shm_problem.empty()) {
    return finding(verdict::problem,
                   "/dev/shm: " + facts.shm_problem,
                   "the driver creates its file of interprocess events there",
                   "mount a tmpfs at /dev/shm");
  }
  if (!facts.shm_is_tmpfs) {
    return finding(verdict::problem,
                   "/dev/shm is not a tmpfs",
                   "cuEventCreate with CU_EVENT_INTERPROCESS fails with invalid argument (1)",
                   "mount a tmpfs at /dev/shm (in a pod: emptyDir with medium: Memory)");
  }
  const std::string seen = base::size_text(facts.shm_free_bytes) + " free in /dev/shm";
  if (facts.shm_free_bytes < event_file_bytes) {
    return finding(verdict::problem,
                   seen,
                   "the driver's file of events needs 80 KiB for 4,096 events",
                   "delete files there, or make it larger (docker run --shm-size)");
  }
  return finding(verdict::ok, seen + ", a tmpfs");
}

check descriptors(const ipc_facts& facts) {
  const std::uint64_t numbers =
      ::ipc_choose_numbers(facts.soft_descriptors, facts.hard_descriptors).count;
  const std::string seen = fmt::format(
      "soft limit {}, hard limit {}: {} numbers for exported descriptors, {} GiB of expandable "
      "segments ({} a GiB) in all processes of the domain",
      facts.soft_descriptors,
      facts.hard_descriptors,
      numbers,
      numbers / descriptors_per_gib,
      descriptors_per_gib);
  const std::string why =
      "exported descriptors get numbers from the soft limit on, below the hard limit, so that they "
      "are unique in the domain and ordinary descriptors keep theirs";
  const std::uint64_t importable = facts.soft_descriptors / descriptors_per_gib;
  if (numbers < 4096) {
    return finding(
        verdict::warning,
        seen,
        why + "; an export that finds no number keeps its own, and cannot be fetched",
        "raise the hard limit: --ulimit nofile=1024:1048576, or LimitNOFILE of the runtime");
  }
  if (importable < 64) {
    return finding(
        verdict::note,
        seen,
        fmt::format("{}; what a program fetches counts against the soft limit only while "
                    "it imports",
                    why));
  }
  return finding(verdict::ok, seen);
}

check mps(const ipc_facts& facts) {
  if (facts.mps) {
    return finding(verdict::note,
                   "an MPS control daemon runs",
                   "not measured: CUDA IPC between clients of one MPS server and other processes");
  }
  return finding(verdict::not_applicable, "no MPS");
}

}  // namespace

std::vector<check> examine_ipc(const ipc_facts& facts) {
  using rule = check (*)(const ipc_facts&);
  static constexpr auto rules =
      std::to_array<std::pair<const char*, rule>>({{"ipc-library", library},
                                                   {"ipc-loader", loader},
                                                   {"ipc-switch", switched},
                                                   {"ipc-domain", domain},
                                                   {"ipc-shm", shm},
                                                   {"ipc-descriptors", descriptors},
                                                   {"ipc-mps", mps}});
  std::vector<check> checks;
  for (const auto& [id, apply] : rules) {
    check& made = checks.emplace_back(apply(facts));
    made.id = id;
    made.section = "CUDA IPC of unchanged programs";
  }
  return checks;
}

}  // namespace gpushm::inspect
