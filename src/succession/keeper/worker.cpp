// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/guarded_fd.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/deadline.hpp"
#include "base/process/signals.hpp"
#include "base/report/log.hpp"
#include "protocol/transport/listener.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/descriptor_store/notification.hpp"
#include "succession/descriptor_store/notification_socket.hpp"
#include "succession/descriptor_store/takeover.hpp"
#include "succession/keeper/closing_child.hpp"
#include "succession/keeper/end_text.hpp"
#include "succession/keeper/start_program.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;
using place = shared_state::place;
using problem = shared_state::problem;

constexpr std::string_view operation = "keep descriptors";
constexpr milliseconds longest_delay{5'000};
constexpr milliseconds short_life{10'000};
/// A program that was ready is started again at once if it has lived as long; for its clients wait.
constexpr milliseconds useful_life{10};
/// Before a start is tried again that failed in this process.
constexpr milliseconds retry_pause{500};
/// The exit status of this keeper after a failed takeover.
constexpr int takeover_failed = 1;
/// From the last close of a program's descriptors until its end is reported, usually at once.
constexpr milliseconds time_to_be_reaped{200};
/// For the end of a program after SIGKILL.
constexpr milliseconds time_to_die{5'000};
/// A notification in which this many workers have been killed is dropped.
constexpr unsigned max_attempts = 3;
/// Descriptors that are closed together in a child; fewer than the keeper's reserve.
constexpr std::size_t max_removed = 16;

void log(const std::string& text) noexcept {
  base::log(log_level::info, text);
}
void warn(const std::string& text) noexcept {
  base::log(log_level::warning, text);
}

/// How the program has ended; nullopt: not known, it was another process's child.
using exit_status = std::optional<int>;

std::string text_of(exit_status status) {
  return status ? end_text(*status) : "has ended";
}

class worker {
 public:
  explicit worker(const worker_context& context)
      : in_(context),
        shared_(context.shared),
        stored_(context.stored),
        signals_(base::checked(operation, {}, "signalfd", [&] {
          return ::signalfd(-1, &context.signals, SFD_CLOEXEC | SFD_NONBLOCK);
        })) {
    if (shared_.has_begun.exchange(true)) {
      stored_.read_again();
      close_unknown();
      abandon_half_a_takeover();
    }
    if (shared_.listener) {
      listener_.emplace(context.options.takeover_path,
                        base::guarded_fd(base::unique_fd(shared_.lock.get())),
                        base::guarded_fd(base::unique_fd(shared_.listener.get())),
                        transport::file_identity{shared_.device, shared_.inode},
                        shared_.removes_files);
    }
  }
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;
  ~worker() { leave_listener(); }

  std::optional<int> run() {
    for (bool is_successor_active = false;; is_successor_active = wait()) {
      if (is_guard_gone_) {
        return std::nullopt;
      }
      if (const auto code = step(is_successor_active)) {
        end();
        return code;
      }
    }
  }

 private:
  /// Handles what has happened. Returns the exit status of the keeper, if it ends.
  std::optional<int> step(bool is_successor_active) {
    if (shared_.predecessor && has_predecessor_ended(shared_.predecessor.get())) {
      continue_alone();
    }
    // First: a program that has just exited may have stored something before.
    read_notifications();
    read_signals();
    if (const auto status = reap()) {
      read_notifications();
      if (const auto code = handle_exit(*status)) {
        return code;
      }
    }
    const auto now = clock::now();
    if (has_program() && shared_.gone_at.is_past(now)) {
      warn("the program has ended, but one of its threads is blocked: not waiting for it");
      base::signal_process(shared_.child, SIGKILL);
      if (const auto code = handle_exit(SIGKILL)) {
        return code;
      }
    }
    if (shared_.kill_at.is_past(now)) {
      shared_.kill_at.reset();
      warn("the program did not exit after SIGTERM: SIGKILL");
      base::signal_process(shared_.child, SIGKILL);
    }
    if (has_program() && shared_.reports.finds_hang(now, in_.options.watchdog_timeout)) {
      shared_.reports.forget();
      warn("the program has not reported for " +
           std::to_string(in_.options.watchdog_timeout.count() / 1'000) +
           " s (WATCHDOG=1): SIGKILL");
      base::signal_process(shared_.child, SIGKILL);
    }
    if (shared_.ready_by.is_past(now)) {
      report_failure(shared_.predecessor.get(), "the program is not ready in time");
      warn("the program is not ready in time: the previous keeper continues");
      return takeover_failed;
    }
    if (is_successor_active && look_after_successor() && !in_.options.stays_after_takeover) {
      return 0;
    }
    if (!has_program() && shared_.is_ending) {
      return 0;
    }
    if (may_start() && shared_.start_at.is_past(now)) {
      start();
    }
    return std::nullopt;
  }

  [[nodiscard]] bool has_program() const noexcept { return shared_.child != 0; }
  [[nodiscard]] bool may_start() const noexcept {
    return !has_program() && shared_.used_by == place::own;
  }

  [[nodiscard]] int next_timeout() const {
    std::optional<clock::time_point> next;
    const auto consider_time = [&](clock::time_point time) {
      next = std::min(time, next.value_or(time));
    };
    const auto consider = [&](const shared_time& time) {
      if (time) {
        consider_time(time.get());
      }
    };
    consider(shared_.kill_at);
    consider(shared_.ready_by);
    consider(shared_.gone_at);
    if (const auto look = shared_.reports.next_look(in_.options.watchdog_timeout)) {
      consider_time(*look);
    }
    if (may_start()) {
      consider(shared_.start_at);
    }
    return next ? static_cast<int>(base::time_left(*next).count()) : -1;
  }

  /// Returns whether there is something to read from the successor, or it has ended.
  bool wait() {
    const bool may_hand_over =
        shared_.used_by == place::own && listener_ && !shared_.predecessor && !shared_.successor;
    // poll ignores negative numbers.
    std::array<pollfd, 8> waits{
        {{signals_.get(), POLLIN, 0},
         {shared_.socket.get(), POLLIN, 0},
         {may_hand_over ? listener_->descriptor() : -1, POLLIN, 0},
         {shared_.used_by == place::successors ? shared_.successor.get()
                                               : shared_.successor_life.get(),
          POLLIN,
          0},
         {has_program() && !shared_.gone_at ? shared_.program_life.get() : -1, POLLIN, 0},
         {has_program() ? shared_.program.get() : -1, POLLIN, 0},
         {in_.guard, POLLIN, 0},
         {shared_.predecessor.get(), 0, 0}}};  // its end
    base::retry([&] { return ::poll(waits.data(), waits.size(), next_timeout()); });
    if (waits[2].revents != 0) {
      accept();
    }
    if (waits[4].revents != 0) {
      shared_.gone_at.set(clock::now() + time_to_be_reaped);
    }
    is_guard_gone_ = waits[6].revents != 0;
    return waits[3].revents != 0;
  }

  /// What a worker that was killed had opened and not yet stored.
  void close_unknown() const {
    std::vector<int> known = in_.foreign;
    for (const stored_descriptor& each : stored_.all()) {
      known.push_back(each.number);
    }
    for (const shared_number* each : {&shared_.socket,
                                      &shared_.lock,
                                      &shared_.listener,
                                      &shared_.successor,
                                      &shared_.successor_life,
                                      &shared_.predecessor,
                                      &shared_.life,
                                      &shared_.program,
                                      &shared_.program_life}) {
      if (*each) {
        known.push_back(each->get());
      }
    }
    known.push_back(signals_.get());
    known.push_back(in_.guard);
    std::sort(known.begin(), known.end());
    int from = 0;
    for (const int each : known) {
      if (from < each) {
        ::syscall(SYS_close_range, from, each - 1, 0);
      }
      from = each + 1;
    }
    ::syscall(SYS_close_range, from, ~0U, 0);
  }

  // ---- takeover ----

  /// A worker was killed while it handed over: the successor, which cannot use anything yet, fails.
  void abandon_half_a_takeover() noexcept {
    if (shared_.successor && shared_.used_by == place::own) {
      start_again();
      shared_.successor.reset();
    }
  }

  /// A takeover from this keeper has failed.
  void start_again() noexcept {
    const auto now = clock::now();
    shared_.pause.fail(now, in_.options.takeover_pause_factor);
    shared_.start_at.set(now);
  }

  /// Returns why a takeover is refused; nullopt: it is not.
  [[nodiscard]] std::optional<std::string> refusal() const {
    const auto left = shared_.pause.left(clock::now());
    if (!left) {
      return std::nullopt;
    }
    return "the last takeover has failed" + (failure_.empty() ? "" : " (" + failure_ + ")") +
           "; the next one can begin in " +
           std::to_string(std::chrono::ceil<std::chrono::seconds>(*left).count()) + " s";
  }

  /// They remain open.
  void leave_listener() noexcept {
    if (listener_) {
      auto [lock, socket] = std::move(*listener_).release();
      static_cast<void>(lock.release().release());
      static_cast<void>(socket.release().release());
      listener_.reset();
    }
  }

  /// The program is ready: the predecessor is no longer needed.
  void complete_takeover() {
    if (!report_ready(shared_.predecessor.get())) {
      log("the previous keeper has ended by itself");
    }
    shared_.predecessor.reset();
    shared_.life.reset();
    shared_.ready_by.reset();
  }

  /// The predecessor has ended, although the program is not ready: nothing else has the
  /// descriptors.
  void continue_alone() {
    log("the previous keeper has ended: this one continues, also if its program fails");
    shared_.predecessor.reset();
    shared_.life.reset();
    shared_.ready_by.reset();
  }

  /// Ends the program for a successor.
  void accept() {
    base::guarded_fd successor = accept_successor(*listener_);
    if (successor) {
      if (const auto reason = refusal()) {
        log("another keeper asks to take over: " + *reason);
        refuse(successor.get(), *reason);
        return;
      }
      shared_.pause.begin(clock::now());
      shared_.successor.take(successor.release());
      log("another keeper takes over");
      shared_.is_away = true;
      stop_program();
      if (!has_program()) {
        hand_over_everything();
      }
    }
  }

  /// The program has exited.
  void hand_over_everything() {
    try {
      hand_over(shared_.successor.get(),
                stored_.all(),
                *listener_,
                in_.options.takeover_timeout,
                [&](base::unique_fd life) {
                  // From here on, a program of the successor may be alive.
                  shared_.successor_life.take(std::move(life));
                  shared_.used_by = place::successors;
                });
      log("handed over " + std::to_string(stored_.size()) + " descriptors");
    } catch (const std::exception& why) {
      warn(why.what());
      shared_.successor.reset();
      if (shared_.used_by == place::successors) {
        shared_.used_by = place::undecided;
      } else {
        start_again();
      }
    }
  }

  /// Returns whether the successor needs this keeper no more.
  bool look_after_successor() {
    if (shared_.used_by == place::successors) {
      switch (state_of(shared_.successor.get())) {
        case successor_state::starting:
          return false;
        case successor_state::ready:
          shared_.used_by = place::nowhere;
          log("the other keeper has taken over");
          shared_.successor.reset();
          shared_.successor_life.reset();
          listener_->leave_files();
          leave_listener();
          shared_.listener.reset();
          shared_.lock.reset();
          stored_.clear();
          return true;
        case successor_state::failed:
          failure_ = failure_of(shared_.successor.get());
          warn("the other keeper has failed" + (failure_.empty() ? "" : ": " + failure_));
          shared_.used_by = place::undecided;
          shared_.successor.reset();
          return false;
      }
    }
    if (shared_.used_by == place::undecided) {
      warn("neither the other keeper nor its program is alive: starting this one's again");
      shared_.successor_life.reset();
      start_again();
      shared_.used_by = place::own;
    }
    return false;
  }

  // ---- the program ----

  void stop_program() {
    if (has_program() && !shared_.kill_at) {
      shared_.reports.forget();  // it has `stop_timeout`
      base::signal_process(shared_.child, SIGTERM);
      shared_.kill_at.set(clock::now() + in_.options.stop_timeout);
    }
  }

  void forget_program() noexcept {
    shared_.gone_at.reset();
    shared_.kill_at.reset();
    shared_.reports.forget();
    shared_.child = 0;
    shared_.program.reset();
    shared_.program_life.reset();
  }

  /// Returns the exit status of the keeper, if it ends.
  std::optional<int> handle_exit(exit_status status) {
    const int code = !status              ? 0
                     : WIFEXITED(*status) ? WEXITSTATUS(*status)
                                          : 128 + WTERMSIG(*status);
    if (shared_.is_ending || (code == cannot_execute && stored_.empty())) {
      forget_program();
      if (shared_.successor && shared_.used_by == place::own) {
        hand_over_everything();  // it waits for that, and has nothing yet
      }
      return code;
    }
    if (shared_.predecessor) {
      forget_program();
      report_failure(shared_.predecessor.get(), "the program " + text_of(status));
      warn("the program " + text_of(status) +
           ", before it was ready: the previous keeper continues");
      return code == 0 ? takeover_failed : code;
    }
    if (!shared_.successor) {
      plan_restart(status);
    }
    forget_program();
    if (shared_.successor) {
      hand_over_everything();
    }
    return std::nullopt;
  }

  void read_signals() {
    signalfd_siginfo info{};
    while (base::retry([&] { return ::read(signals_.get(), &info, sizeof(info)); }) ==
           static_cast<ssize_t>(sizeof(info))) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGHUP) {
        shared_.is_to_be_replaced = true;
      } else if (number != SIGCHLD) {
        shared_.is_ending = true;
      }
    }
    if (shared_.is_to_be_replaced.exchange(false) || shared_.is_ending) {
      stop_program();
    }
  }

  /// Reaps this process's children. Returns how the program has ended, if it has.
  std::optional<exit_status> reap() {
    std::optional<exit_status> result;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == shared_.child) {
        result = status;
      }
    }
    if (!result && has_program() && has_exited()) {
      // Since then, or it was a child of a worker that was killed.
      const bool is_own = ::waitpid(shared_.child, &status, WNOHANG) == shared_.child;
      result = is_own ? exit_status(status) : exit_status();
    }
    return result;
  }

  [[nodiscard]] bool has_exited(milliseconds timeout = milliseconds(0)) const {
    pollfd entry{shared_.program.get(), POLLIN, 0};
    return base::retry([&] { return ::poll(&entry, 1, static_cast<int>(timeout.count())); }) > 0;
  }

  void plan_restart(exit_status status) {
    const auto now = clock::now();
    milliseconds delay{shared_.delay};
    const auto life = now - shared_.started.get();
    if (shared_.kill_at || life >= short_life || (shared_.is_ready && life >= useful_life)) {
      delay = milliseconds(0);
    } else if (shared_.is_ready) {
      delay = in_.options.restart_delay;
    } else {
      delay = std::clamp(delay * 2, in_.options.restart_delay, longest_delay);
    }
    shared_.delay = delay.count();
    shared_.start_at.set(now + delay);
    warn("the program " + text_of(status) + "; it is started again in " +
         std::to_string(delay.count()) + " ms with " + std::to_string(stored_.size()) +
         " descriptors");
  }

  // ---- notifications ----

  /// Each is removed after it has been handled, so that none is lost with a worker.
  void read_notifications() noexcept {
    for (;;) {
      try {
        received_notification got = peek_notification(shared_.socket.get());
        if (!got.any) {
          close_removed();
          return;
        }
        const unsigned before = shared_.attempts++;
        if (before >= max_attempts) {
          base::log(log_level::error, "a notification has ended this process: it is ignored");
        } else if (got.from_user) {
          handle(got, before != 0);
        }
      } catch (const std::bad_alloc&) {
        shared_.last_problem = problem::memory;
      }
      remove_notification(shared_.socket.get());
      shared_.attempts = 0;
      ++shared_.message;
      if (removed_.size() >= max_removed) {
        close_removed();
      }
    }
  }

  /// Those whose close may block are closed together: each time costs a process.
  void close_when_possible(std::vector<base::unique_fd> descriptors) {
    for (base::unique_fd& each : descriptors) {
      if (may_block_when_closed(each.get())) {
        removed_.push_back(std::move(each));
      }
    }
  }

  void close_removed() noexcept { close_in_child(std::exchange(removed_, {})); }

  void handle(received_notification& received_notification, bool may_be_repeated) {
    const notification notification = parse_notification(received_notification.text);
    if (may_be_repeated && notification.store) {
      stored_.undo(shared_.message, notification.name, received_notification.descriptors);
    }
    if (received_notification.incomplete) {
      shared_.last_problem = problem::open_files;
    }
    if (notification.ready) {
      shared_.is_ready = true;
      shared_.is_away = false;
      if (shared_.predecessor) {
        complete_takeover();
      }
    }
    if (notification.alive && shared_.is_ready && has_program() && !shared_.kill_at) {
      shared_.reports.report(clock::now(), in_.options.watchdog_timeout);
    }
    if (notification.remove) {
      close_when_possible(stored_.remove(notification.name));
    }
    if (notification.store) {
      for (base::unique_fd& each : received_notification.descriptors) {
        if (stored_.size() >= in_.options.max_descriptors ||
            !stored_.add(notification.name, std::move(each), shared_.message)) {
          shared_.last_problem = problem::full;
          break;
        }
      }
    }
    if (notification.barrier) {
      close_removed();
    }
    if (notification.barrier && received_notification.descriptors.size() == 1) {
      if (notification.has_name) {
        if (!stored_.contains(notification.name)) {
          report(received_notification.descriptors[0].get(),
                 "the keeper has not stored " + notification.name + "; it has " +
                     std::to_string(stored_.size()) + " descriptors");
        }
      } else if (shared_.last_problem != problem::none) {
        const std::string text = problem_text();
        report(received_notification.descriptors[0].get(), text);
        warn(text);
        shared_.last_problem = problem::none;
      }
    }
  }

  /// To a pipe's write end; if it is anything else, only its sender is affected.
  static void report(int file, const std::string& text) {
    if (::fcntl(file, F_SETFL, O_NONBLOCK) == 0) {
      [[maybe_unused]] const auto written = ::write(file, text.data(), text.size());
    }
  }

  [[nodiscard]] std::string problem_text() const {
    switch (shared_.last_problem) {
      case problem::none:
        break;
      case problem::memory:
        return "the keeper has no memory";
      case problem::open_files:
        return "the keeper has reached its open file limit";
      case problem::full:
        return "the keeper has " + std::to_string(stored_.size()) +
               " descriptors, the most that it stores";
    }
    return {};
  }

  /// A failure is one of resources (processes, descriptors): it is tried again.
  void start() noexcept {
    try {
      start_now();
    } catch (const std::exception& why) {
      warn(why.what());
      shared_.program.reset();
      shared_.program_life.reset();
      shared_.start_at.set(clock::now() + retry_pause);
    }
  }

  void start_now() {
    shared_.started.set(clock::now());
    shared_.is_ready = false;
    std::array<int, 2> ends{};
    base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
    base::unique_fd read_end(ends[0]);
    const base::unique_fd write_end(ends[1]);
    shared_.gone_at.reset();
    shared_.program_life.take(std::move(read_end));
    start_program({in_.options.argv,
                   in_.options.socket_path,
                   in_.options.max_descriptors,
                   in_.options.watchdog_timeout,
                   stored_.all(),
                   {shared_.life.get(), write_end.get()},
                   in_.original_mask,
                   reason_of_start(),
                   shared_.child},
                  [&](base::unique_fd program) { shared_.program.take(std::move(program)); });
  }

  [[nodiscard]] start_reason reason_of_start() const noexcept {
    if (shared_.predecessor) {
      return start_reason::takeover;
    }
    return shared_.is_away ? start_reason::failed_takeover : start_reason::ordinary;
  }

  /// Leaves no program and no file.
  void end() {
    if (has_program()) {
      base::signal_process(shared_.child, SIGKILL);
      static_cast<void>(has_exited(time_to_die));
      ::waitpid(shared_.child, nullptr, WNOHANG);
      forget_program();
    }
    ::unlink(in_.options.socket_path.c_str());
    if (listener_ && shared_.used_by != place::own) {
      listener_->leave_files();  // a successor that is not ready also listens there
    }
    listener_.reset();
  }

  const worker_context& in_;
  shared_state& shared_;
  stored_descriptors& stored_;
  const base::unique_fd signals_;
  std::optional<transport::listener> listener_;
  std::vector<base::unique_fd> removed_;  ///< open, until they are closed in a child
  std::string failure_;                   ///< of the last takeover; empty: not known
  bool is_guard_gone_ = false;
};

}  // namespace

std::optional<int> work(const worker_context& context) {
  return worker(context).run();
}

}  // namespace gpushm::keeper
