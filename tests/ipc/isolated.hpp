// SPDX-License-Identifier: Apache-2.0
#pragma once

// Programs with their own namespaces, as containers have them, without a container runtime.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/ipc/peer.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace gpushm_tests::ipc {

struct peer_options {
  std::string reach = "dlsym";
  bool preloaded = true;
  /// Without a domain, records of exported events complete their work.
  bool completes_events = true;
  /// Is PID 1 of a PID namespace, with its own IPC, network and mount namespace and /dev/shm.
  bool isolated = true;
  /// A child process does the work, with another PID.
  bool forked = false;
  uid_t uid = 0;
  std::vector<std::pair<std::string, std::string>> env;
};

/// The reason why namespaces cannot be created here, for GTEST_SKIP.
[[nodiscard]] inline std::optional<std::string> why_no_namespaces() {
  gpushm_testing::spawn_options probe;
  probe.argv = {"unshare", "--pid", "--ipc", "--net", "--mount", "--fork", "true"};
  const auto done = gpushm_testing::run_program(probe);
  return done.status.success() ? std::nullopt : std::optional("no namespaces here: " + done.err);
}

[[nodiscard]] inline peer<gpushm_testing::child> start_peer(const gpushm::fake::fake_gpus& gpus,
                                                            const peer_options& options = {}) {
  gpushm_testing::spawn_options spawned;
  spawned.env = gpus.environment();
  auto& argv = spawned.argv;
  if (options.isolated) {
    argv = {"unshare",
            "--pid",
            "--ipc",
            "--net",
            "--mount",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec \"$@\"",
            "sh"};
  }
  if (options.uid != 0) {
    const std::string uid = std::to_string(options.uid);
    for (const std::string& each : {std::string("setpriv"),
                                    "--reuid=" + uid,
                                    "--regid=" + uid,
                                    std::string("--clear-groups"),
                                    std::string("--no-new-privs")}) {
      argv.push_back(each);
    }
  }
  argv.emplace_back("env");
  if (options.preloaded) {
    argv.push_back("LD_PRELOAD=" + library());
  }
  if (options.completes_events) {
    argv.emplace_back("GPUSHM_IPC_EVENTS=complete");
  }
  for (const auto& [name, value] : options.env) {
    argv.push_back(name + "=" + value);
  }
  for (const std::string& each : program_argv(options.reach)) {
    argv.push_back(each);
  }
  if (options.forked) {
    argv.emplace_back("--fork");
  }
  return peer(gpushm_testing::child::start(spawned));
}

}  // namespace gpushm_tests::ipc
