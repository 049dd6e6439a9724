// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands that look at machines: what each was asked to do, and the function that does it.
// Like commands.hpp.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

/// How long the driver may take to answer. Waking the GPUs of a large machine without persistence
/// mode takes seconds each, one after the other for all who ask at the same time.
inline constexpr std::chrono::milliseconds default_driver_timeout{30'000};

struct doctor_arguments {
  std::string socket;
  std::int32_t peer_pid = 0;
  std::string peer_container;
  bool selftest = true;
  bool accept_fake_chunks = false;  ///< of the self-test's broker: the fake driver's memory
  std::string from;  ///< a recording instead of this machine: what `doctor --json` printed
  std::chrono::milliseconds driver_timeout = default_driver_timeout;
  bool json = false;
};
[[nodiscard]] int run_doctor(const doctor_arguments& arguments);

struct explain_arguments {
  std::vector<std::string> words;  ///< one "-": read standard input
  std::string from;
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
  std::vector<inspect::way> ways;      ///< empty: all
  std::vector<std::string> devices;    ///< two GPUs, or one; empty: the first two
  std::vector<std::string> binds;      ///< further host paths that the containers get
  std::vector<std::string> variables;  ///< further environment variables that they get
  std::chrono::milliseconds timeout{300'000};
  bool accept_fake_chunks = false;  ///< of the fake driver: for tests
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

/// One side of trials of sharing, as told on standard input; started by `doctor` and `matrix`.
struct trial_worker_arguments {
  bool own_namespaces = false;  ///< works in new PID, IPC, mount, network and UTS namespaces
  int spare_pids = 0;           ///< how many PIDs to use up first
};
[[nodiscard]] int run_trial_worker(const trial_worker_arguments& arguments);

}  // namespace gpushm::cli
