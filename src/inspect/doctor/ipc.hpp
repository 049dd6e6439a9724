// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/doctor/check.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// One library that the loader is to preload.
struct preload_entry {
  std::string path;
  bool from_file = false;  ///< in /etc/ld.so.preload; false: in LD_PRELOAD
  std::string problem;     ///< why the loader cannot load it; empty: it can
};

/// What decides whether CUDA IPC of unchanged programs works in this container.
struct ipc_facts {
  std::string installed;  ///< the libgpushm-ipc.so that was found; empty: none
  std::string loaded;     ///< the one in this process, as in each other program; empty: none
  std::vector<preload_entry> entries;  ///< whatever their library is
  bool switched_off = false;           ///< GPUSHM_IPC=0
  bool secure = false;                 ///< AT_SECURE: this program has other rights than its caller
  std::string glibc;                   ///< version of this process's C library: "2.36"
  std::vector<std::string> other_loaders;  ///< of other C libraries: "/lib/ld-musl-x86_64.so.1"
  std::string chosen_domain;               ///< GPUSHM_IPC_DOMAIN
  broker_facts domain;                     ///< the one that programs here use
  bool shm_is_tmpfs = false;               ///< of /dev/shm
  std::string shm_problem;                 ///< why /dev/shm cannot be used at all
  std::uint64_t shm_free_bytes = 0;
  std::uint64_t soft_descriptors = 0;  ///< RLIMIT_NOFILE
  std::uint64_t hard_descriptors = 0;
  bool mps = false;
};

/// The oldest C library for which libgpushm-ipc.so is built.
inline constexpr std::string_view oldest_glibc = "2.28";
/// PyTorch's expandable segments have chunks of 20 MiB.
inline constexpr std::uint64_t descriptors_per_gib = 52;

/// Applies every rule: "ipc-library", "ipc-loader", "ipc-switch", "ipc-domain", "ipc-shm",
/// "ipc-descriptors", "ipc-mps", in this order. Pure.
[[nodiscard]] std::vector<check> examine_ipc(const ipc_facts& facts);

}  // namespace gpushm::inspect
