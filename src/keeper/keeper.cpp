// SPDX-License-Identifier: Apache-2.0
#include "keeper/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <list>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/deadline.hpp"
#include "base/guarded_fd.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "keeper/inherited_descriptors.hpp"
#include "keeper/notification.hpp"
#include "keeper/notification_socket.hpp"
#include "keeper/start_program.hpp"
#include "keeper/stored_descriptors.hpp"
#include "keeper/takeover.hpp"
#include "transport/listener.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

constexpr std::string_view operation = "keep descriptors";
/// Descriptors that the keeper itself and the start of a program need.
constexpr std::size_t reserved_descriptors = 32;
constexpr milliseconds longest_delay{5'000};
constexpr milliseconds short_life{10'000};
/// Of this keeper, after a takeover that has failed.
constexpr int takeover_failed = 1;
/// Between two attempts to find out whether another keeper starts at this moment.
constexpr milliseconds retry_pause{10};
/// From the last close of a program's descriptors until its end is reported, usually at once.
constexpr milliseconds time_to_be_reaped{200};

void log(const std::string& text) noexcept {
  base::log(log_level::info, text);
}

std::size_t default_max_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto all = static_cast<std::size_t>(limit.rlim_cur);
  return all > 2 * reserved_descriptors ? all - reserved_descriptors : reserved_descriptors;
}

/// Creates the directory of a socket, for this user only, if there is none; binding the socket
/// reports a failure.
const std::string& with_directory(const std::string& path) {
  static_cast<void>(::mkdir(path.substr(0, path.find_last_of('/')).c_str(), S_IRWXU));
  return path;
}

}  // namespace

class keeper::impl {
 public:
  explicit impl(keeper_options options)
      : options_(std::move(options)),
        socket_(bind_notification_socket(with_directory(options_.socket_path))) {
    if (options_.argv.empty()) {
      throw error(errc::invalid_argument,
                  std::string(operation),
                  {},
                  "no program to start",
                  "name it after --");
    }
    if (options_.max_descriptors == 0) {
      options_.max_descriptors = default_max_descriptors();
    }
    if (!options_.takeover_path.empty()) {
      take_over_or_listen();
    }
  }
  ~impl() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::unlink(options_.socket_path.c_str());
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  int run() {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int each : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
      sigaddset(&handled, each);
    }
    ::pthread_sigmask(SIG_BLOCK, &handled, &original_mask_);
    signals_ = base::unique_fd(base::checked(operation, {}, "signalfd", [&] {
      return ::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    }));
    start();
    for (;;) {
      const bool is_successor_active = wait();
      // First: a program that has just exited may have stored something before.
      read_notifications();
      read_signals();
      if (const auto status = reap()) {
        read_notifications();
        if (const auto code = handle_exit(*status)) {
          return *code;
        }
      }
      const auto now = clock::now();
      if (child_ > 0 && gone_at_ && now >= *gone_at_) {
        if (const auto code = give_up_child()) {
          return *code;
        }
      }
      if (kill_at_ && now >= *kill_at_) {
        kill_at_.reset();
        log("the program did not exit after SIGTERM: SIGKILL");
        ::kill(child_, SIGKILL);
      }
      if (ready_by_ && now >= *ready_by_) {
        log("the program is not ready in time: the keeper before continues");
        return takeover_failed;  // the destructor ends the program
      }
      if (is_successor_active && look_after_successor() && !options_.stays_after_takeover) {
        return 0;
      }
      if (child_ <= 0 && is_ending_) {
        return 0;
      }
      if (child_ <= 0 && place_ == place::own && now >= start_at_) {
        start();
      }
    }
  }

 private:
  [[nodiscard]] int next_timeout() const {
    std::optional<clock::time_point> next = kill_at_;
    if (child_ <= 0 && place_ == place::own) {
      next = start_at_;
    }
    for (const auto& each : {ready_by_, gone_at_}) {
      if (each) {
        next = std::min(*each, next.value_or(*each));
      }
    }
    return next ? static_cast<int>(base::time_left(*next).count()) : -1;
  }

  /// Returns whether there is something to read from the successor, or it has ended.
  bool wait() {
    // poll ignores negative numbers.
    const bool may_hand_over = place_ == place::own && listener_ && !predecessor_;
    std::array<pollfd, 5> waits{
        {{signals_.get(), POLLIN, 0},
         {socket_.get(), POLLIN, 0},
         {may_hand_over && !successor_ ? listener_->descriptor() : -1, POLLIN, 0},
         {place_ == place::successors ? successor_.get() : successor_life_.get(), POLLIN, 0},
         {child_ > 0 && !gone_at_ ? program_life_.get() : -1, POLLIN, 0}}};
    base::retry([&] { return ::poll(waits.data(), waits.size(), next_timeout()); });
    if (waits[2].revents != 0) {
      accept();
    }
    if (waits[4].revents != 0) {
      gone_at_ = clock::now() + time_to_be_reaped;
    }
    return waits[3].revents != 0;
  }

  // ---- takeover ----

  void take_over_or_listen() {
    const std::string& path = options_.takeover_path;
    const auto deadline = base::deadline_after(options_.takeover_timeout);
    for (;;) {
      if (auto all = take_over(path, base::time_left(deadline))) {
        if (all->descriptors.size() > options_.max_descriptors) {
          throw error(errc::too_many_descriptors,
                      std::string(operation),
                      path,
                      "the keeper before has " + std::to_string(all->descriptors.size()) +
                          " descriptors, more than the " +
                          std::to_string(options_.max_descriptors) + " that this one stores",
                      "raise --max-descriptors, and the open file limit");
        }
        stored_.assign(std::move(all->descriptors));
        listener_.emplace(path, std::move(all->lock), std::move(all->listener));
        life_ = std::move(all->life);
        predecessor_ = std::move(all->predecessor);
        ready_by_ = deadline;
        log("taken over " + std::to_string(stored_.size()) + " descriptors");
        return;
      }
      try {
        listener_.emplace(with_directory(path), S_IRUSR | S_IWUSR, std::nullopt);
        return;
      } catch (const error& why) {
        if (why.code() != errc::address_in_use) {
          throw;
        }
        if (base::time_left(deadline).count() == 0) {
          throw error(errc::address_in_use,
                      std::string(operation),
                      path,
                      "the program that listens there does not hand over",
                      "see its log; it must be a keeper of this user");
        }
      }
      base::pause_before_retry(retry_pause);  // another keeper starts at this moment
    }
  }

  /// The program is ready: the predecessor is not needed any more.
  void complete_takeover() {
    if (!report_ready(predecessor_.get())) {
      log("the keeper before has ended by itself");
    }
    predecessor_.reset();
    life_.reset();
    ready_by_.reset();
  }

  /// Ends the program for a successor.
  void accept() {
    successor_ = accept_successor(*listener_);
    if (successor_) {
      log("another keeper takes over");
      stop_program();
      if (child_ <= 0) {
        hand_over_everything();
      }
    }
  }

  /// The program has exited.
  void hand_over_everything() {
    try {
      successor_life_ =
          hand_over(successor_.get(), stored_.all(), *listener_, options_.takeover_timeout);
      place_ = place::successors;
      log("handed over " + std::to_string(stored_.size()) + " descriptors");
    } catch (const std::exception& why) {
      log(why.what());
      successor_.reset();
      start_at_ = clock::now();
    }
  }

  /// Returns whether the successor needs this keeper no more.
  bool look_after_successor() {
    if (place_ == place::successors) {
      switch (state_of(successor_.get())) {
        case successor_state::starting:
          return false;
        case successor_state::ready:
          log("the other keeper has taken over");
          successor_.reset();
          successor_life_.reset();
          listener_->leave_files();
          listener_.reset();
          stored_.clear();
          place_ = place::nowhere;
          return true;
        case successor_state::failed:
          log("the other keeper has failed");
          successor_.reset();
          place_ = place::undecided;
          return false;
      }
    }
    if (place_ == place::undecided) {
      log("neither the other keeper nor its program is alive: starting this one's again");
      successor_life_.reset();
      place_ = place::own;
      start_at_ = clock::now();
    }
    return false;
  }

  // ---- the program ----

  void stop_program() {
    if (child_ > 0 && !kill_at_) {
      ::kill(child_, SIGTERM);
      kill_at_ = clock::now() + options_.stop_timeout;
    }
  }

  /// Returns the exit status of the keeper, if it ends.
  std::optional<int> handle_exit(int status) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (is_ending_ || (code == cannot_execute && stored_.empty())) {
      return code;
    }
    if (predecessor_) {
      log("the program has ended with " + std::to_string(code) +
          " before it was ready: the keeper before continues");
      return code == 0 ? takeover_failed : code;
    }
    if (successor_) {
      kill_at_.reset();
      hand_over_everything();
    } else {
      plan_restart(status);
    }
    return std::nullopt;
  }

  void read_signals() {
    signalfd_siginfo info{};
    while (base::retry([&] { return ::read(signals_.get(), &info, sizeof(info)); }) ==
           static_cast<ssize_t>(sizeof(info))) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) {
        continue;
      }
      is_ending_ = is_ending_ || number != SIGHUP;
      stop_program();
    }
  }

  /// Reaps all children (as PID 1, also those of others). Returns the status of the program.
  std::optional<int> reap() {
    std::optional<int> result;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == child_) {
        child_ = -1;
        gone_at_.reset();
        result = status;
      }
    }
    return result;
  }

  void plan_restart(int status) {
    const auto now = clock::now();
    const bool was_stopped = kill_at_.has_value();
    kill_at_.reset();
    if (was_stopped || now - started_ >= short_life) {
      delay_ = milliseconds(0);
    } else if (is_ready_) {
      delay_ = options_.restart_delay;
    } else {
      delay_ = std::clamp(delay_ * 2, options_.restart_delay, longest_delay);
    }
    start_at_ = now + delay_;
    log("the program ended with " +
        (WIFEXITED(status) ? "status " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status))) +
        "; it is started again in " + std::to_string(delay_.count()) + " ms with " +
        std::to_string(stored_.size()) + " descriptors");
  }

  void read_notifications() noexcept {
    for (;;) {
      try {
        received_notification got = receive_notification(socket_.get());
        if (!got.any) {
          return;
        }
        if (got.from_user) {
          handle(got);
        }
      } catch (const std::bad_alloc&) {
        problem_ = "the keeper has no memory";
      }
    }
  }

  void handle(received_notification& got) {
    const notification what = parse_notification(got.text);
    if (got.incomplete) {
      problem_ = "the keeper has reached its open file limit";
    }
    if (what.ready) {
      is_ready_ = true;
      if (predecessor_) {
        complete_takeover();
      }
    }
    if (what.remove) {
      stored_.remove(what.name);
    }
    if (what.store) {
      for (base::unique_fd& each : got.descriptors) {
        if (stored_.size() >= options_.max_descriptors) {
          problem_ = "the keeper has " + std::to_string(stored_.size()) +
                     " descriptors, the most that it stores";
          break;
        }
        stored_.add(what.name, std::move(each));
      }
    }
    if (what.barrier && got.descriptors.size() == 1 && !problem_.empty()) {
      // A pipe's write end; if it is anything else, only its sender is affected.
      if (::fcntl(got.descriptors[0].get(), F_SETFL, O_NONBLOCK) == 0) {
        [[maybe_unused]] const auto written =
            ::write(got.descriptors[0].get(), problem_.data(), problem_.size());
      }
      log(problem_);
      problem_.clear();
    }
  }

  void start() {
    started_ = clock::now();
    is_ready_ = false;
    std::array<int, 2> ends{};
    base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
    program_life_ = base::unique_fd(ends[0]);
    const base::unique_fd write_end(ends[1]);
    gone_at_.reset();
    child_ = start_program({options_.argv,
                            options_.socket_path,
                            stored_.all(),
                            {life_.get(), write_end.get()},
                            original_mask_});
  }

  /// A program whose threads are blocked, for instance by a client's file of a FUSE server that
  /// does not answer, cannot be reaped. It has ended all the same once its descriptors are closed.
  std::optional<int> give_up_child() {
    log("the program has ended, but one of its threads is blocked: not waiting for it");
    ::kill(child_, SIGKILL);
    child_ = -1;
    return handle_exit(SIGKILL);
  }

  keeper_options options_;
  base::unique_fd socket_;
  base::unique_fd signals_;
  sigset_t original_mask_{};
  /// Whose program uses the descriptors.
  enum class place : unsigned char {
    own,
    successors,  ///< until it is ready
    undecided,   ///< the successor has failed, but its program may be alive
    nowhere,     ///< a successor has taken over
  };
  place place_ = place::own;
  std::optional<transport::listener> listener_;  ///< for a successor
  base::guarded_fd successor_;
  base::unique_fd successor_life_;  ///< end of file: neither it nor its program is alive
  base::guarded_fd predecessor_;    ///< until the program is ready
  base::unique_fd life_;            ///< for the program, until it is ready
  std::optional<clock::time_point> ready_by_;
  stored_descriptors stored_;
  std::string problem_;  ///< since the last barrier; empty: none
  pid_t child_ = -1;
  bool is_ready_ = false;  ///< the program has sent READY=1
  bool is_ending_ = false;
  base::unique_fd program_life_;              ///< end of file: the program has no descriptors
  std::optional<clock::time_point> gone_at_;  ///< then the program is not waited for any longer
  std::optional<clock::time_point> kill_at_;  ///< after SIGTERM
  clock::time_point started_{};
  clock::time_point start_at_{};
  milliseconds delay_{0};
};

keeper::keeper(keeper_options options) : impl_(std::make_unique<impl>(std::move(options))) {}
keeper::~keeper() = default;
int keeper::run() {
  return impl_->run();
}

}  // namespace gpushm::keeper
