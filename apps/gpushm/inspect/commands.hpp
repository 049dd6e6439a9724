// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arguments of the commands that inspect machines, and the functions that run them, as in
// commands.hpp.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// Time limit for querying the driver. Without persistence mode, waking the GPUs of a large machine
/// takes seconds each, and concurrent queries are served one after the other.
inline constexpr std::chrono::milliseconds default_driver_timeout{30'000};

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
[[nodiscard]] int run_doctor(const doctor_arguments& arguments);

struct explain_arguments {
  std::vector<std::string> words;  ///< one "-": read standard input
  std::string from;
  bool here = false;  ///< the text is from this machine
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  bool json = false;
};
[[nodiscard]] int run_explain(const explain_arguments& arguments);

enum class topo_picture : std::uint8_t { none, dot, svg };
struct topo_arguments {
  topo_picture picture = topo_picture::none;  ///< none: text
  bool measure = false;
  std::string from;
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  std::string socket;
  bool json = false;
};
[[nodiscard]] int run_topo(const topo_arguments& arguments);

struct matrix_arguments {
  std::string runtime = "runc";
  std::vector<inspect::way> ways;      ///< empty: all that can be tested here
  std::string ipc_library;             ///< libgpushm-ipc.so; empty: searched
  bool measure = false;                ///< bandwidth, and larger segments
  std::vector<std::string> devices;    ///< two GPUs, or one; empty: the first two
  std::vector<std::string> binds;      ///< additional host paths for the containers
  std::vector<std::string> variables;  ///< additional environment variables for the containers
  std::chrono::milliseconds timeout{300'000};
  bool accept_fake_chunks = false;  ///< accept the fake driver's memory: for tests
  bool markdown = false;
  bool json = false;
};
[[nodiscard]] int run_matrix(const matrix_arguments& arguments);

/// Queries the driver and prints a `driver_view` as JSON. `doctor` and others run it as a child,
/// because a broken driver can crash the calling process.
struct probe_driver_arguments {};
[[nodiscard]] int run_probe_driver(const probe_driver_arguments& arguments);

/// Measures between GPUs and prints JSON; started by `topo --measure`.
struct measure_worker_arguments {};
[[nodiscard]] int run_measure_worker(const measure_worker_arguments& arguments);

/// One side of trials, controlled through standard input; started by `doctor` and `matrix`.
struct trial_worker_arguments {
  bool own_namespaces = false;  ///< runs in new PID, IPC, mount, network and UTS namespaces
  /// With `own_namespaces`: also a /dev/shm of its own, and without `ipc_socket` no domains.
  bool own_files = false;
  int spare_pids = 0;  ///< the number of PIDs to use up first
  /// libgpushm-ipc.so, preloaded for `inspect::ipc_ways`; empty: these run without it.
  std::string ipc_library;
  std::string ipc_socket;  ///< of the domain for `ipc_library`; empty: without a domain
};
[[nodiscard]] int run_trial_worker(const trial_worker_arguments& arguments);

/// A child of a trial worker as a program of its own, with a preloaded library.
struct trial_side_arguments {
  std::string way;
  std::string ipc_library;
};
[[nodiscard]] int run_trial_side(const trial_side_arguments& arguments);

}  // namespace gpushm::cli
