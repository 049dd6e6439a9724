// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/refresh_child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/child_process.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "generate in a child process";

nlohmann::json result_of(const std::function<std::string()>& work) {
  try {
    return {{"text", work()}};
  } catch (const error& failure) {
    return {{"code", static_cast<int>(failure.code())},
            {"operation", failure.operation()},
            {"object", failure.object()},
            {"cause", failure.cause()},
            {"next_step", failure.next_step()}};
  } catch (const std::exception& failure) {
    return {{"code", static_cast<int>(errc::system_error)},
            {"operation", operation},
            {"object", ""},
            {"cause", failure.what()},
            {"next_step", ""}};
  }
}

[[noreturn]] void run_child(const std::function<std::string()>& work, pid_t parent, int to) {
  static_cast<void>(::prctl(PR_SET_PDEATHSIG, SIGKILL));
  if (::getppid() != parent) {
    ::_exit(1);
  }
  const std::string text =
      result_of(work).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::size_t done = 0;
  while (done < text.size()) {
    const auto wrote =
        base::retry([&] { return ::write(to, text.data() + done, text.size() - done); });
    if (wrote <= 0) {
      ::_exit(1);
    }
    done += static_cast<std::size_t>(wrote);
  }
  // Not exit: it would flush the parent's buffers and run its handlers.
  ::_exit(0);
}

/// Kills and reaps the child in the destructor.
class running_child {
 public:
  explicit running_child(pid_t pid) noexcept : pid_(pid) {}
  running_child(const running_child&) = delete;
  running_child& operator=(const running_child&) = delete;
  ~running_child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      static_cast<void>(reap());
    }
  }
  int reap() {
    int status = 0;
    static_cast<void>(base::retry([&] { return ::waitpid(pid_, &status, 0); }));
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

// Reads up to end of file; false when `until` passed first.
bool read_all(int from, std::string& text, base::deadline until) {
  std::array<char, 65'536> buffer{};
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return false;
    }
    struct pollfd waited {
      from, POLLIN, 0
    };
    if (base::retry([&] { return ::poll(&waited, 1, static_cast<int>(left.count())); }) <= 0) {
      continue;
    }
    const auto got = base::retry([&] { return ::read(from, buffer.data(), buffer.size()); });
    if (got <= 0) {
      return true;
    }
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string run_in_child(const std::function<std::string()>& work,
                         std::chrono::milliseconds timeout) {
  std::array<int, 2> ends{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  const base::unique_fd from(ends[0]);
  base::unique_fd to(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    base::throw_errno(errno, operation, {}, "fork");
  }
  if (pid == 0) {
    run_child(work, parent, to.get());
  }
  running_child child(pid);
  to.reset();
  std::string text;
  if (!read_all(from.get(), text, base::deadline_in(timeout))) {
    throw error(errc::timed_out,
                operation,
                {},
                "the driver did not answer in time",
                "check that nvidia-smi answers, and the kernel log for Xid lines");
  }
  const int status = child.reap();
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
  if (!answer.is_object()) {
    throw error(errc::driver_error,
                operation,
                {},
                std::string("it ended early: ").append(base::status_text(status)),
                "check that nvidia-smi works on this machine");
  }
  if (answer.contains("code")) {
    throw error(static_cast<errc>(answer.at("code").get<int>()),
                answer.at("operation").get<std::string>(),
                answer.at("object").get<std::string>(),
                answer.at("cause").get<std::string>(),
                answer.at("next_step").get<std::string>());
  }
  return answer.at("text").get<std::string>();
}

}  // namespace gpushm::cli
