// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arguments of each command, and the function that runs it. The functions return the exit
// status; all throw `error`, which becomes exit status 1, or `usage_error`, which becomes 2.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/gpushm/exit_status.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/client.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/file_export.hpp"
#include "gpushm/tensors.hpp"

namespace gpushm::cli {

/// Arguments of every command that connects to a broker.
struct connection_arguments {
  std::string socket;
  /// Unset: the command's own timeout.
  std::optional<std::chrono::milliseconds> connect_timeout;
  bool json = false;
};

/// Of gpushm-brokerd, for operators.
struct node_arguments {
  std::string run_dir = "/run/gpushm";
  std::string domain = "default";
};

struct serve_arguments {
  broker_options broker;
  std::string group;
  std::string log_level = "info";
  std::optional<int> ready_fd;
  bool detach = false;
  /// Exit after this time without clients and segments; nullopt: never.
  std::optional<std::chrono::milliseconds> idle_exit;
};
[[nodiscard]] int run_serve(const serve_arguments& arguments);

struct create_arguments {
  connection_arguments connection;
  std::string name;
  create_options options;  ///< without the size
  std::optional<std::uint64_t> size_bytes;
  std::string from;
  std::optional<std::uint8_t> fill;
  std::string metadata;  ///< or "@FILE"
  bool hold = false;
  bool until_released = false;
  std::optional<std::chrono::milliseconds> timeout;  ///< for hold and until_released
};
[[nodiscard]] int run_create(const create_arguments& arguments);

struct load_arguments {
  connection_arguments connection;
  std::vector<std::string> paths;
  std::string name;
  load_options options;
};
[[nodiscard]] int run_load(const load_arguments& arguments);

/// What to do with a segment of another process.
struct use_arguments {
  bool checksum = false;
  std::string out;
  bool hold = false;
};

struct open_arguments {
  connection_arguments connection;
  std::string name;
  open_options options;
  use_arguments use;
};
[[nodiscard]] int run_open(const open_arguments& arguments);

struct list_arguments {
  connection_arguments connection;
  std::string prefix;
  bool names_only = false;
  bool all = false;  ///< also the library's own segments; with `ipc`, each registration
  bool ipc = false;  ///< who exports to unchanged programs, in place of segments
  bool by_principal = false;
  node_arguments node;  ///< if by_principal
};
[[nodiscard]] int run_list(const list_arguments& arguments);

struct stat_arguments {
  connection_arguments connection;
  std::string name;
  bool broker = false;  ///< gpushm-brokerd in place of a segment
  node_arguments node;  ///< of `broker`; an empty domain: all
};
[[nodiscard]] int run_stat(const stat_arguments& arguments);

struct remove_arguments {
  connection_arguments connection;
  std::vector<std::string> names;
  bool unheld = false;    ///< persistent segments that no process has open
  std::string principal;  ///< only those of this one; empty: of all
  bool dry_run = false;
  node_arguments node;  ///< if unheld
};
[[nodiscard]] int run_remove(const remove_arguments& arguments);

struct release_arguments {
  connection_arguments connection;
  std::vector<std::string> names;
  bool unfenced = false;
};
[[nodiscard]] int run_release(const release_arguments& arguments);

struct wait_arguments {
  connection_arguments connection;
  std::string name;
  std::chrono::milliseconds timeout{30'000};
  bool removed = false;
};
[[nodiscard]] int run_wait(const wait_arguments& arguments);

/// What `export` allocates; automatic: cuda_vmm on a GPU, host without one.
enum class export_kind : std::uint8_t { automatic, cuda_vmm, cuda_ipc, host };

struct export_arguments {
  std::string file;
  std::optional<std::uint64_t> size_bytes;
  std::string from;
  std::optional<std::uint8_t> fill;
  std::string device = "auto";
  export_kind kind = export_kind::automatic;
  std::string metadata;  ///< or "@FILE"
  bool until_released = false;
  std::optional<std::chrono::milliseconds> timeout;
  file_export_options options;
  bool json = false;
};
[[nodiscard]] int run_export(const export_arguments& arguments);

struct import_arguments {
  std::string file;
  import_options options;
  use_arguments use;
  bool json = false;
};
[[nodiscard]] int run_import(const import_arguments& arguments);

struct quotas_arguments {
  std::string run_dir = "/run/gpushm";
  std::string domain = "default";
  std::string set;  ///< file of rules; empty: only read
  bool json = false;
};
[[nodiscard]] int run_quotas(const quotas_arguments& arguments);

struct lost_gpu_arguments {
  std::string uuid;
  std::string pci_address;
  std::string run_dir = "/run/gpushm";
  bool json = false;
};
[[nodiscard]] int run_lost_gpu(const lost_gpu_arguments& arguments);

struct run_arguments {
  std::string domain;
  std::string socket;
  std::string libraries;           ///< empty: the installed ones
  std::vector<std::string> words;  ///< the program and its arguments
};
/// Becomes the program; returns only by an exception.
[[nodiscard]] int run_run(const run_arguments& arguments);

struct version_arguments {
  bool json = false;
};
[[nodiscard]] int run_version(const version_arguments& arguments);

/// Which data the demo damages, for tests of its checks.
enum class corrupt_stage : std::uint8_t { none, fill, rewrite, survive };

struct demo_arguments {
  std::string device = "auto";
  std::string consumer_device;  ///< empty: the segment's GPU
  std::optional<std::uint64_t> size_bytes;
  std::chrono::milliseconds timeout{0};  ///< for the whole demo; zero: depends on the size
  bool isolated = false;
  bool channel = false;  ///< show a channel instead of a segment
  bool json = false;
  corrupt_stage corrupt = corrupt_stage::none;
};
[[nodiscard]] int run_demo(const demo_arguments& arguments);

/// One of the demo's processes; `gpushm demo` starts its own executable with these.
struct demo_role_arguments {
  std::string role;  ///< "broker", "producer" or "consumer"
  std::string socket;
  std::string name;
  std::string device;
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;         ///< of the pattern that it writes, or reads first
  std::uint64_t answer_seed = 0;  ///< of the pattern written back; 0: none
  std::chrono::milliseconds timeout{60'000};
  bool isolate = false;
  uid_t uid = 0;  ///< when isolated
  corrupt_stage corrupt = corrupt_stage::none;
};
[[nodiscard]] int run_demo_role(const demo_role_arguments& arguments);

/// From here on the library's warnings are written to standard error.
void print_warnings();

/// Calls `print_warnings` and connects. Waits for a broker for at most `connect_timeout`, by
/// default `wait`. Throws what `client::connect` throws.
[[nodiscard]] client connect(const connection_arguments& arguments,
                             std::chrono::milliseconds wait = std::chrono::milliseconds(0));

}  // namespace gpushm::cli
