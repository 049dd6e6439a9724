// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/demo/isolation.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/ipc_library.hpp"
#include "apps/gpushm/inspect/trial/protocol.hpp"
#include "apps/gpushm/json_output.hpp"
#include "base/files/domain_places.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/child_process.hpp"
#include "base/process/signals.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

namespace {

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

void add_trial_worker_arguments(CLI::App& app, trial_worker_arguments& arguments) {
  app.group("");
  app.add_flag("--own-namespaces", arguments.own_namespaces);
  app.add_flag("--own-files", arguments.own_files);
  app.add_option("--spare-pids", arguments.spare_pids);
  app.add_option("--ipc-library", arguments.ipc_library);
  app.add_option("--ipc-socket", arguments.ipc_socket);
}

/// A child of a trial worker as a program of its own, with a preloaded library.
struct trial_side_arguments {
  std::string way;
  std::string ipc_library;
};

void add_trial_side_arguments(CLI::App& app, trial_side_arguments& arguments) {
  app.group("");
  app.add_option("--way", arguments.way)->required();
  app.add_option("--ipc-library", arguments.ipc_library)->required();
}

using inspect::way;

constexpr std::string_view operation = "start trial";

struct pipe_ends {
  base::unique_fd read;
  base::unique_fd write;
};
pipe_ends make_pipe() {
  std::array<int, 2> ends{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  return {base::unique_fd(ends[0]), base::unique_fd(ends[1])};
}

/// Consumes the next PID and returns it.
pid_t use_up_pid() {
  const pid_t pid = base::checked(operation, {}, "fork", [] { return ::fork(); });
  if (pid == 0) {
    ::_exit(0);
  }
  base::retry([&] { return ::waitpid(pid, nullptr, 0); });
  return pid;
}

/// For the first process of a PID namespace the next PID varies, because runc's threads have used
/// some PIDs before executing this program. Starts the children's PIDs at a multiple of 64, so that
/// they are equal in two such namespaces.
void use_up_pids(int spare) {
  constexpr pid_t round = 64;
  while (::getpid() == 1 && use_up_pid() % round != round - 1) {
  }
  for (int i = 0; i < spare; ++i) {
    use_up_pid();
  }
}

sigset_t watched_signals() {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
    ::sigaddset(&watched, number);
  }
  return watched;
}

/// The child for one way.
struct worker_child {
  way how = way::host;
  pid_t pid = -1;
  base::unique_fd orders;
  base::unique_fd answers;
  line_buffer lines;
  std::optional<int> status;  ///< as of waitpid(2), once it has been reaped
};

/// Replaces this process by `gpushm trial-side`, a program with libgpushm-ipc.so preloaded, whose
/// events go to `answers`. Returns if that is not possible.
void execute_preloaded(way sharing_way, const trial_worker_arguments& arguments, int answers) {
  // NOLINTBEGIN(concurrency-mt-unsafe): this process has one thread
  const char* before = std::getenv("LD_PRELOAD");
  const std::string preload = before == nullptr || *before == '\0'
                                  ? arguments.ipc_library
                                  : std::string(before) + ":" + arguments.ipc_library;
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::unsetenv("GPUSHM_IPC_DOMAIN");
  ::unsetenv("GPUSHM_SOCKET");
  ::setenv("GPUSHM_IPC_EVENTS", "complete", 1);  // where there is no domain
  if (!arguments.ipc_socket.empty()) {
    ::setenv("GPUSHM_SOCKET", arguments.ipc_socket.c_str(), 1);
  }
  // NOLINTEND(concurrency-mt-unsafe)
  if (answers != answers_number) {
    ::dup2(answers, answers_number);
  } else {
    ::fcntl(answers, F_SETFD, 0);
  }
  const std::string program = base::executable_path();
  const std::string way_name(to_string(sharing_way));
  ::execl(program.c_str(),
          program.c_str(),
          "trial-side",
          "--way",
          way_name.c_str(),
          "--ipc-library",
          arguments.ipc_library.c_str(),
          static_cast<char*>(nullptr));
}

void mount_empty(const char* path) {
  base::checked(operation, path, "mount", [&] {
    return ::mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
  });
}

/// Hides the /dev/shm of other processes, as containers do, and the domains of this machine, which
/// programs without a socket would find.
void hide_files(const std::string& socket) {
  mount_empty("/dev/shm");
  if (socket.empty() && ::access(base::machine_domains, F_OK) == 0) {
    mount_empty(base::machine_domains);
  }
}

/// A process without threads and without CUDA that can be the first of a container. It has a child
/// for each way, forwards lines, and reports how children exited. Thread-safety: distinct objects:
/// safe; shared objects: unsafe.
class worker {
 public:
  explicit worker(const trial_worker_arguments& arguments) : arguments_(arguments) {
    const sigset_t watched = watched_signals();
    // Blocked signals are also delivered to the first process of a PID namespace, for which default
    // actions are ignored.
    ::pthread_sigmask(SIG_BLOCK, &watched, &before_);
    signals_ = base::unique_fd(base::checked(
        operation, {}, "signalfd", [&] { return ::signalfd(-1, &watched, SFD_CLOEXEC); }));
    // In a fixed order and without other processes in between, so that two workers started in the
    // same way have children with equal PIDs.
    for (const way how : inspect::all_ways) {
      start(how);
    }
    // Last, because these are new programs, which may have threads while the others are started.
    for (const way how : inspect::ipc_ways) {
      start(how);
    }
  }
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;
  ~worker() {
    for (const worker_child& each : children_) {
      if (!each.status) {
        base::signal_process(each.pid, SIGKILL);
        base::retry([&] { return ::waitpid(each.pid, nullptr, 0); });
      }
    }
  }

  /// Blocks until the end of the input or a signal to terminate.
  void run() {
    for (;;) {
      std::vector<pollfd> waiting{{STDIN_FILENO, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      for (const worker_child& each : children_) {
        waiting.push_back({each.status ? -1 : each.answers.get(), POLLIN, 0});
      }
      if (base::retry([&] { return ::poll(waiting.data(), waiting.size(), -1); }) < 0) {
        return;
      }
      for (std::size_t i = 0; i < children_.size(); ++i) {
        if (waiting[i + 2].revents != 0) {
          forward(children_[i]);
        }
      }
      if (waiting[1].revents != 0 && !take_signals()) {
        return;
      }
      if (waiting[0].revents != 0 && !take_orders()) {
        return;
      }
    }
  }

 private:
  void start(way sharing_way) {
    pipe_ends orders = make_pipe();
    pipe_ends answers = make_pipe();
    const pid_t parent = ::getpid();
    const pid_t pid = base::checked(operation, {}, "fork", [] { return ::fork(); });
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) {
        ::_exit(127);
      }
      ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      // Closes the other pipes, so that their ends are detected, and redirects standard output, so
      // that no library writes to the worker's output.
      signals_.reset();
      children_.clear();
      orders.write.reset();
      answers.read.reset();
      ::dup2(STDERR_FILENO, STDOUT_FILENO);
      ::dup2(orders.read.get(), STDIN_FILENO);
      if (inspect::needs_ipc_library(sharing_way) && !arguments_.ipc_library.empty()) {
        execute_preloaded(sharing_way, arguments_, answers.write.get());
        run_side(sharing_way, STDIN_FILENO, answers.write.get(), "the program cannot be executed");
        ::_exit(0);
      }
      run_side(sharing_way, STDIN_FILENO, answers.write.get());
      ::_exit(0);
    }
    // Answers are also read after the child has exited, which must not block.
    ::fcntl(answers.read.get(), F_SETFL, O_NONBLOCK);
    worker_child& child = children_.emplace_back();
    child.how = sharing_way;
    child.pid = pid;
    child.orders = std::move(orders.write);
    child.answers = std::move(answers.read);
  }

  static void report(const json& event) { send_line(STDOUT_FILENO, event.dump()); }

  static void report_exit(const worker_child& child) {
    const int status = child.status.value_or(0);
    report(json{{"event", "ended"},
                {"way", to_string(child.how)},
                {"pid", child.pid},
                {"crashed", !WIFEXITED(status) || WEXITSTATUS(status) != 0},
                {"status", base::status_text(status)}});
  }

  static void forward(worker_child& child) {
    std::string line;
    while (child.lines.fill(child.answers.get())) {
      while (child.lines.take(line)) {
        send_line(STDOUT_FILENO, line);
      }
    }
    // Close it at its end: poll would return immediately until the child is reaped.
    pollfd hung_up{child.answers.get(), POLLIN, 0};
    if (::poll(&hung_up, 1, 0) == 1 && (hung_up.revents & POLLHUP) != 0) {
      child.answers.reset();
    }
  }

  /// Returns false on a signal to terminate.
  bool take_signals() {
    signalfd_siginfo signal{};
    if (base::retry([&] { return ::read(signals_.get(), &signal, sizeof signal); }) !=
        sizeof signal) {
      return false;
    }
    if (signal.ssi_signo != SIGCHLD) {
      return false;
    }
    // One signal may represent several exits; as PID 1, this process also reaps orphans.
    int status = 0;
    for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
         pid = ::waitpid(-1, &status, WNOHANG)) {
      for (worker_child& each : children_) {
        if (each.pid == pid && !each.status) {
          forward(each);
          each.status = status;
          each.orders.reset();
          report_exit(each);
        }
      }
    }
    return true;
  }

  /// Returns false at the end of the input.
  bool take_orders() {
    if (!input_.fill(STDIN_FILENO)) {
      return false;
    }
    std::string line;
    while (input_.take(line)) {
      execute(line);
    }
    return true;
  }

  void execute(const std::string& line) {
    const json order = json::parse(line, nullptr, false);
    const std::string name = order.is_object() ? order.value("way", "") : "";
    for (const worker_child& each : children_) {
      if (to_string(each.how) != name) {
        continue;
      }
      const std::string command = order.value("order", "");
      if (each.status) {
        report_exit(each);
      } else if (command == "hello") {
        report(json{{"event", "ready"}, {"way", name}, {"pid", each.pid}});
      } else if (command == "kill") {
        base::signal_process(each.pid, SIGKILL);
      } else {
        send_line(each.orders.get(), line);
      }
      return;
    }
    report(json{{"event", "failed"}, {"text", "unknown order: " + line}});
  }

  const trial_worker_arguments& arguments_;
  sigset_t before_{};
  base::unique_fd signals_;
  line_buffer input_;
  std::vector<worker_child> children_;
};

int run_trial_side(const trial_side_arguments& arguments) {
  const auto how = inspect::parse_way(arguments.way);
  if (!how) {
    throw usage_error(errc::invalid_argument, "trial-side", arguments.way, "no such way", "");
  }
  const std::string refusal =
      !loaded_ipc_library().empty()
          ? ""
          : arguments.ipc_library + " was not loaded; the loader has printed the reason";
  run_side(*how, STDIN_FILENO, answers_number, refusal);
  return exit_ok;
}

int run_trial_worker(const trial_worker_arguments& arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const rlimit no_core{0, 0};  // crashes are expected here
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    if (arguments.own_namespaces) {
      isolate(std::nullopt, "gpushm-trial", [](pid_t) {});
      if (arguments.own_files) {
        hide_files(arguments.ipc_socket);
      }
    }
    use_up_pids(arguments.spare_pids);
    worker(arguments).run();
    return exit_ok;
  } catch (const error& failure) {
    send_line(
        STDOUT_FILENO,
        json{{"event", "failed"}, {"text", failure.cause()}, {"error", to_json(failure)}}.dump(
            -1, ' ', false, json::error_handler_t::replace));
    return exit_failed;
  }
}

}  // namespace

void add_trial_worker(command_list& commands) {
  add_command<trial_worker_arguments>(
      commands, "trial-worker", "", add_trial_worker_arguments, run_trial_worker);
}

void add_trial_side(command_list& commands) {
  add_command<trial_side_arguments>(
      commands, "trial-side", "", add_trial_side_arguments, run_trial_side);
}

}  // namespace gpushm::cli
