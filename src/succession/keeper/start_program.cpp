// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/start_program.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/deadline.hpp"
#include "base/process/signals.hpp"
#include "base/report/log.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/descriptor_store/inherited_descriptors.hpp"

namespace gpushm::keeper {

namespace {

constexpr std::string_view operation = "keep descriptors";
/// A longer variable would not fit into an environment (Linux: MAX_ARG_STRLEN, 128 KiB).
constexpr std::size_t max_variable_bytes = 100'000;

/// For execve, which does not change the strings.
std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& each : texts) {
    result.push_back(const_cast<char*>(each.data()));
  }
  result.push_back(nullptr);
  return result;
}

/// Moves a descriptor to a number from `first` on. Returns false if there is none.
bool move_behind(int& number, int first) noexcept {
  const int moved = ::fcntl(number, F_DUPFD_CLOEXEC, first);
  if (moved != -1) {
    ::close(std::exchange(number, moved));
  }
  return moved != -1;
}

/// Moves the descriptors to the numbers from `first_inherited` on, in their order, and `others`
/// (-1: none) behind them. Returns false if the descriptor table has no room.
bool move_inherited(const std::vector<stored_descriptor>& stored, std::array<int, 3>& others) {
  const int end = first_inherited + static_cast<int>(stored.size());
  for (int& each : others) {
    if (each != -1 && !move_behind(each, end)) {
      return false;
    }
  }
  std::vector<int> sources;
  std::unordered_map<int, std::size_t> users;  // by number: the index of the source there
  for (const stored_descriptor& each : stored) {
    users.emplace(each.number, sources.size());
    sources.push_back(each.number);
  }
  // In place: there may be no room for twice as many.
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const int target = first_inherited + static_cast<int>(i);
    if (sources[i] != target) {
      if (const auto other = users.find(target); other != users.end() && other->second > i) {
        int& source = sources[other->second];
        if (!move_behind(source, end)) {
          return false;
        }
        users.emplace(source, other->second);
      }
      if (::dup2(sources[i], target) == -1 || ::close(sources[i]) != 0) {
        return false;
      }
      users.erase(sources[i]);
    } else if (::fcntl(target, F_SETFD, 0) != 0) {
      return false;
    }
  }
  for (const int each : others) {
    if (each != -1 && ::fcntl(each, F_SETFD, 0) != 0) {
      return false;
    }
  }
  return true;
}

[[noreturn]] void fail(const std::string& step) {
  base::log(log_level::error, "cannot " + step + ": " + base::errno_text(errno));
  ::_exit(cannot_execute);
}

/// In the child: until then, it dies with its parent, which would be unable to find it.
void wait_until_known(const std::atomic<pid_t>& pid, pid_t parent) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const pid_t self = ::getpid();
  while (pid != self) {
    if (::getppid() != parent) {
      ::_exit(cannot_execute);
    }
    base::pause_before_retry(std::chrono::milliseconds(1));
  }
  ::prctl(PR_SET_PDEATHSIG, 0);
}

/// In the child. `names_number`: of the file of names; -1: `names` has them.
[[noreturn]] void execute(const program_start& start, const std::string& names, int names_number) {
  base::close_others_at_exec();  // the stored ones are then allowed one by one
  std::array<int, 3> others{names_number, start.pipes[0], start.pipes[1]};
  if (!move_inherited(start.stored, others)) {
    fail("move the inherited descriptors");
  }
  std::vector<std::string> environment{
      "NOTIFY_SOCKET=" + start.notification_path,
      std::string(capacity_variable) + "=" + std::to_string(start.capacity),
      "LISTEN_PID=" + std::to_string(::getpid()),
      "LISTEN_FDS=" + std::to_string(start.stored.size()),
      names_number == -1 ? std::string(names_variable) + "=" + names
                         : std::string(names_file_variable) + "=" + std::to_string(others[0])};
  if (start.watchdog.count() != 0) {
    environment.push_back("WATCHDOG_PID=" + std::to_string(::getpid()));
    environment.push_back("WATCHDOG_USEC=" +
                          std::to_string(std::chrono::microseconds(start.watchdog).count()));
  }
  if (start.why != start_reason::ordinary) {
    environment.push_back(std::string(start_variable) + "=" + std::string(to_string(start.why)));
  }
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view name(*each, std::string_view(*each).find('='));
    if (name != "NOTIFY_SOCKET" && name != capacity_variable && name != "LISTEN_PID" &&
        name != "LISTEN_FDS" && name != "WATCHDOG_PID" && name != "WATCHDOG_USEC" &&
        name != start_variable && name != names_variable && name != names_file_variable) {
      environment.emplace_back(*each);
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &start.mask, nullptr);
  ::execvpe(start.argv[0].c_str(), pointers_to(start.argv).data(), pointers_to(environment).data());
  fail("execute " + start.argv[0]);
}

}  // namespace

void start_program(const program_start& start,
                   const std::function<void(base::unique_fd pidfd)>& opened) {
  std::string names;
  for (const stored_descriptor& each : start.stored) {
    names += names.empty() ? "" : ":";
    names += each.name;
  }
  base::unique_fd names_file;
  if (names.size() > max_variable_bytes) {
    names_file = base::unique_fd(base::checked(operation, {}, "memfd_create", [] {
      return ::memfd_create("gpushm-descriptor-names", 0);
    }));
    base::checked(operation, {}, "write", [&] {
      return ::write(names_file.get(), names.data(), names.size());
    });
    names.clear();
  }
  const pid_t parent = ::getpid();
  const pid_t child = base::checked(operation, {}, "fork", [] { return ::fork(); });
  if (child == 0) {
    wait_until_known(start.pid, parent);
    execute(start, names, names_file.release());
  }
  try {
    opened(base::unique_fd(base::checked(operation, {}, "pidfd_open", [&] {
      return static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
    })));
  } catch (...) {
    base::signal_process(child, SIGKILL);  // it still waits
    ::waitpid(child, nullptr, 0);
    throw;
  }
  start.pid = child;
}

}  // namespace gpushm::keeper
