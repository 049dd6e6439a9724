// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpushm/inspect/inspect_options.hpp"

namespace gpushm::cli {

struct doctor_arguments {
  std::string socket;
  std::int32_t peer_pid = 0;
  std::string peer_container;
  bool ipc = false;         ///< check CUDA IPC of unchanged programs instead
  std::string ipc_library;  ///< libgpushm-ipc.so; empty: searched
  bool selftest = true;
  bool accept_fake_chunks = false;  ///< the self-test's broker accepts the fake driver's memory
  std::string from;  ///< a recording to use instead of this machine: the output of `doctor --json`
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  bool json = false;
};

/// `gpushm doctor --ipc`. Throws `error`.
[[nodiscard]] int run_doctor_ipc(const doctor_arguments& arguments);

}  // namespace gpushm::cli
