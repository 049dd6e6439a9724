// SPDX-License-Identifier: Apache-2.0
#include "tests/support/brokerd/brokerd.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_testing {

namespace {

/// Linux counts descriptors in flight by uid: programs that run at the same time share none.
uid_t uid_under_root() {
  constexpr uid_t first = 61'000;
  constexpr uid_t count = 4'000;
  static const uid_t result = first + static_cast<uid_t>(::getpid()) % count;
  return result;
}
constexpr std::chrono::seconds start_timeout{20};

spawn_options command_in_new_directory(const std::string& run_dir,
                                       const std::vector<std::string>& for_broker,
                                       unsigned open_files,
                                       const std::vector<std::string>& for_keeper) {
  make_run_directory(run_dir);
  spawn_options options = brokerd_command(run_dir, for_broker, for_keeper);
  options.open_files = open_files;
  return options;
}

}  // namespace

uid_t brokerd_uid() {
  return ::geteuid() == 0 ? uid_under_root() : ::geteuid();
}

void make_run_directory(const std::string& path) {
  ::mkdir(path.c_str(), 0755);
  if (::chmod(path.c_str(), 0755) != 0 ||
      (::geteuid() == 0 && ::chown(path.c_str(), brokerd_uid(), brokerd_uid()) != 0)) {
    throw harness_error("cannot create " + path);
  }
}

spawn_options brokerd_command(const std::string& run_dir,
                              const std::vector<std::string>& for_broker,
                              const std::vector<std::string>& for_keeper) {
  spawn_options options;
  options.argv = {own_program("gpushm-keeper"), "--socket", run_dir + "/keeper/notify"};
  options.argv.insert(options.argv.end(), for_keeper.begin(), for_keeper.end());
  options.argv.insert(options.argv.end(),
                      {"--", own_program("gpushm-brokerd"), "--run-dir", run_dir});
  // A sanitizer makes other system calls.
  options.argv.insert(options.argv.end(),
                      {"--forbidden-call", gpushm::base::under_sanitizer ? "allow" : "kill"});
  options.argv.insert(options.argv.end(), for_broker.begin(), for_broker.end());
  if (::geteuid() == 0) {
    options.uid = brokerd_uid();
    options.gid = brokerd_uid();
  }
  return options;
}

brokerd::brokerd(const std::string& run_dir,
                 const std::vector<std::string>& for_broker,
                 unsigned open_files,
                 const std::vector<std::string>& for_keeper)
    : keeper_(child::start(command_in_new_directory(run_dir, for_broker, open_files, for_keeper))) {
  const std::string socket = run_dir + "/private/socket";
  if (!eventually([&] { return std::filesystem::exists(socket) || !keeper_.running(); },
                  start_timeout) ||
      !keeper_.running()) {
    throw harness_error("gpushm-brokerd does not start: " + keeper_.output().all_output());
  }
}

pid_t brokerd::pid() const {
  return program_kept_by(keeper_.pid());
}

bool brokerd::kill() const {
  return kill_program_kept_by(keeper_.pid());
}

pid_t program_kept_by(pid_t keeper) {
  for (const pid_t each : descendants_of(keeper)) {
    if (!process_is_alive(each)) {
      continue;
    }
    // Empty: it has just ended, as a process of the keeper that closes descriptors does.
    const std::string program = program_of(each);
    if (!program.empty() && program != "gpushm-keeper") {
      return each;
    }
  }
  return 0;
}

pid_t worker_of_keeper(pid_t keeper, pid_t before) {
  pid_t result = 0;
  const auto find = [&] {
    for (const pid_t each : descendants_of(keeper)) {
      if (each != before && process_is_alive(each) && program_of(each) == "gpushm-keeper") {
        result = each;
      }
    }
    return result != 0;
  };
  if (!eventually(find, start_timeout)) {
    throw harness_error("the keeper has no second process");
  }
  return result;
}

bool kill_program_kept_by(pid_t keeper) {
  const pid_t before = program_kept_by(keeper);
  if (before != 0) {
    gpushm::base::signal_process(before, SIGKILL);
  }
  const auto has_another = [&] {
    const pid_t now = program_kept_by(keeper);
    return now != 0 && now != before;
  };
  return eventually(has_another, start_timeout);
}

}  // namespace gpushm_testing
