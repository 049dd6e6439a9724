// SPDX-License-Identifier: Apache-2.0
#include "keeper/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <list>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/deadline.hpp"
#include "base/fork_guard.hpp"
#include "base/guarded_fd.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "keeper/inherited_descriptors.hpp"
#include "keeper/notification.hpp"
#include "keeper/takeover.hpp"
#include "transport/address.hpp"
#include "transport/listener.hpp"
#include "wire/messages.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

constexpr std::string_view operation = "keep descriptors";
/// Descriptors that the keeper itself and the start of a program need.
constexpr std::size_t reserved_descriptors = 32;
constexpr milliseconds longest_delay{5'000};
constexpr milliseconds short_life{10'000};
/// A longer variable would not fit into an environment (Linux: MAX_ARG_STRLEN, 128 KiB).
constexpr std::size_t max_variable_bytes = 100'000;
/// Of a child that cannot execute the program, as a shell's.
constexpr int cannot_execute = 127;
/// Of this keeper, after a takeover that has failed.
constexpr int takeover_failed = 1;
/// Between two attempts to find out whether another keeper starts at this moment.
constexpr milliseconds retry_pause{10};

void log(const std::string& text) noexcept {
  base::log(log_level::info, text);
}

std::size_t default_max_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto all = static_cast<std::size_t>(limit.rlim_cur);
  return all > 2 * reserved_descriptors ? all - reserved_descriptors : reserved_descriptors;
}

base::unique_fd bind_socket(const std::string& path) {
  const sockaddr_un address = transport::unix_address(operation, path);
  base::unique_fd socket(base::checked(operation, path, "socket", [] {
    return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as connect expects
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    throw error(errc::address_in_use,
                std::string(operation),
                path,
                "a living keeper has this socket",
                "give each keeper a socket of its own (--socket)");
  }
  ::unlink(path.c_str());
  base::checked(operation, path, "bind", [&] {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as bind expects
    return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
  const int on = 1;
  base::checked(operation, path, "setsockopt(SO_PASSCRED)", [&] {
    return ::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  });
  return socket;
}

struct received {
  bool any = false;        ///< false: nothing has arrived
  bool from_user = false;  ///< sent by a process of this user
  bool incomplete = false;
  std::string text;
  std::vector<base::unique_fd> descriptors;
};

received receive(int socket) {
  std::array<char, max_notification_bytes> buffer{};
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(int) * wire::max_batch) + CMSG_SPACE(sizeof(ucred))>
          control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  // Without MSG_CMSG_CLOEXEC: they are for the program. The handlers of fork_guard.hpp replace
  // driver files that are close-on-exec, among them GPU memory.
  const auto size = base::retry([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT); });
  received result;
  if (size < 0) {
    return result;
  }
  result.any = true;
  result.incomplete = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET) {
      continue;
    }
    if (entry->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(entry), sizeof(who));
      result.from_user = who.uid == ::geteuid();
    } else if (entry->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
        result.descriptors.emplace_back(number);
      }
    }
  }
  result.text.assign(buffer.data(), static_cast<std::size_t>(size));
  return result;
}

}  // namespace

class keeper::impl {
 public:
  explicit impl(keeper_options options)
      : options_(std::move(options)), socket_(bind_socket(options_.socket_path)) {
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
      wait();
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
      if (kill_at_ && now >= *kill_at_) {
        kill_at_.reset();
        log("the program did not exit after SIGTERM: SIGKILL");
        ::kill(child_, SIGKILL);
      }
      if (ready_by_ && now >= *ready_by_) {
        log("the program is not ready in time: the keeper before continues");
        return takeover_failed;  // the destructor ends the program
      }
      if (look_after_successor() && !options_.stays_after_takeover) {
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
    if (ready_by_) {
      next = std::min(*ready_by_, next.value_or(*ready_by_));
    }
    return next ? static_cast<int>(base::time_left(*next).count()) : -1;
  }

  void wait() {
    // poll ignores negative numbers.
    const bool may_hand_over = place_ == place::own && listener_ && !predecessor_;
    std::array<pollfd, 4> waits{
        {{signals_.get(), POLLIN, 0},
         {socket_.get(), POLLIN, 0},
         {may_hand_over && !successor_ ? listener_->descriptor() : -1, POLLIN, 0},
         {place_ == place::successors ? successor_.get() : successor_life_.get(), POLLIN, 0}}};
    base::retry([&] { return ::poll(waits.data(), waits.size(), next_timeout()); });
    if (waits[2].revents != 0) {
      accept();
    }
    is_successor_active_ = waits[3].revents != 0;
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
        stored_ = std::move(all->descriptors);
        listener_.emplace(path, std::move(all->lock), std::move(all->listener));
        life_ = std::move(all->life);
        predecessor_ = std::move(all->predecessor);
        ready_by_ = deadline;
        log("taken over " + std::to_string(stored_.size()) + " descriptors");
        return;
      }
      try {
        listener_.emplace(path, S_IRUSR | S_IWUSR, std::nullopt);
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
      successor_life_ = hand_over(successor_.get(), stored_, *listener_, options_.takeover_timeout);
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
    if (!is_successor_active_) {
      return false;
    }
    is_successor_active_ = false;
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
        received got = receive(socket_.get());
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

  void handle(received& got) {
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
      stored_.remove_if([&](const named_descriptor& each) { return each.name == what.name; });
    }
    if (what.store) {
      for (base::unique_fd& each : got.descriptors) {
        if (stored_.size() >= options_.max_descriptors) {
          problem_ = "the keeper has " + std::to_string(stored_.size()) +
                     " descriptors, the most that it stores";
          break;
        }
        stored_.push_back({what.name, std::move(each)});
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
    std::string names;
    for (const named_descriptor& each : stored_) {
      names += (names.empty() ? "" : ":") + each.name;
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
    started_ = clock::now();
    is_ready_ = false;
    child_ = base::checked(operation, {}, "fork", [] { return ::fork(); });
    if (child_ == 0) {
      execute(names, std::move(names_file));
    }
  }

  /// In the child. Moves the descriptors to the numbers from `first_inherited` on, in the order of
  /// `stored_`.
  [[noreturn]] void execute(const std::string& names, base::unique_fd names_file) {
    base::close_others_at_exec();  // the stored ones are then allowed one by one
    const auto count = static_cast<int>(stored_.size());
    std::array<int, 2> others{names_file.release(), life_.release()};
    const int& names_number = others[0];
    bool moved = true;
    for (int& each : others) {
      moved = moved && (each == -1 || move_behind(each, first_inherited + count));
    }
    std::vector<int> sources;
    std::unordered_map<int, std::size_t> users;  // by number: the index of the source there
    for (const named_descriptor& each : stored_) {
      users.emplace(each.descriptor.get(), sources.size());
      sources.push_back(each.descriptor.get());
    }
    // In place: there may be no room for twice as many.
    for (std::size_t i = 0; moved && i < sources.size(); ++i) {
      const int target = first_inherited + static_cast<int>(i);
      if (sources[i] == target) {
        moved = ::fcntl(target, F_SETFD, 0) == 0;
        continue;
      }
      if (const auto other = users.find(target); other != users.end() && other->second > i) {
        int& source = sources[other->second];
        moved = move_behind(source, first_inherited + count);
        users.emplace(source, other->second);
      }
      moved = moved && ::dup2(sources[i], target) != -1 && ::close(sources[i]) == 0;
      users.erase(sources[i]);
    }
    for (const int each : others) {
      moved = moved && (each == -1 || ::fcntl(each, F_SETFD, 0) == 0);
    }
    if (!moved) {
      fail("move the inherited descriptors");
    }
    std::vector<std::string> environment{
        "NOTIFY_SOCKET=" + options_.socket_path,
        "LISTEN_PID=" + std::to_string(::getpid()),
        "LISTEN_FDS=" + std::to_string(count),
        names_number == -1 ? std::string(names_variable) + "=" + names
                           : std::string(names_file_variable) + "=" + std::to_string(names_number)};
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string_view name(*each, std::string_view(*each).find('='));
      if (name != "NOTIFY_SOCKET" && name != "LISTEN_PID" && name != "LISTEN_FDS" &&
          name != names_variable && name != names_file_variable) {
        environment.emplace_back(*each);
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
    ::execvpe(options_.argv[0].c_str(),
              pointers_to(options_.argv).data(),
              pointers_to(environment).data());
    fail("execute " + options_.argv[0]);
  }

  /// For execve, which does not change the strings.
  static std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> result;
    result.reserve(texts.size() + 1);
    for (std::string& each : texts) {
      result.push_back(each.data());
    }
    result.push_back(nullptr);
    return result;
  }

  /// Moves a descriptor to a number from `first` on. Returns false if there is none.
  static bool move_behind(int& number, int first) noexcept {
    const int moved = ::fcntl(number, F_DUPFD_CLOEXEC, first);
    if (moved != -1) {
      ::close(std::exchange(number, moved));
    }
    return moved != -1;
  }

  [[noreturn]] static void fail(const std::string& what) {
    const std::string text =
        "gpushm-keeper: cannot " + what + ": " + base::errno_text(errno) + "\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(cannot_execute);
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
  base::unique_fd successor_life_;    ///< end of file: neither it nor its program is alive
  bool is_successor_active_ = false;  ///< at the last wait
  base::guarded_fd predecessor_;      ///< until the program is ready
  base::unique_fd life_;              ///< for the program, until it is ready
  std::optional<clock::time_point> ready_by_;
  std::list<named_descriptor> stored_;
  std::string problem_;  ///< since the last barrier; empty: none
  pid_t child_ = -1;
  bool is_ready_ = false;  ///< the program has sent READY=1
  bool is_ending_ = false;
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
