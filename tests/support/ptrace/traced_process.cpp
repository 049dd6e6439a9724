// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptrace/traced_process.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

using gpushm::base::unique_fd;

traced_process::traced_process(spawn_options options, std::uint64_t kill_at) {
  std::promise<spawned> started;
  std::promise<trace_result> finished;
  auto start = started.get_future();
  result_ = finished.get_future();
  std::array<int, 2> gate{};
  if (::pipe2(gate.data(), O_CLOEXEC) != 0) {
    throw harness_error("pipe2: " + gpushm::base::errno_text(errno));
  }
  unique_fd gate_read(gate[0]);
  unique_fd gate_write(gate[1]);
  options.gate = gate_read.get();
  // LeakSanitizer traces its own process at exit, and a process can have only one tracer.
  options.env.emplace_back("LSAN_OPTIONS", "detect_leaks=0");

  // ptrace is per thread, and so is waitpid with __WNOTHREAD: this thread has no other children.
  tracer_ = std::jthread([options = std::move(options),
                          kill_at,
                          gate_end = std::move(gate_write),
                          started = std::move(started),
                          finished = std::move(finished)]() mutable {
    pid_t pid = -1;
    try {
      auto process = spawn(options);
      pid = process.pid;
      trace_attach(pid);
      started.set_value(std::move(process));
    } catch (...) {
      if (pid > 0) {
        gpushm::base::signal_process(pid, SIGKILL);
        gpushm::base::retry([&] { return ::waitpid(pid, nullptr, __WALL); });
      }
      started.set_exception(std::current_exception());
      return;
    }
    [[maybe_unused]] const auto opened = ::write(gate_end.get(), "g", 1);
    try {
      finished.set_value(trace_to_end(pid, kill_at));
    } catch (...) {
      finished.set_exception(std::current_exception());
    }
  });
  process_ = start.get();
  output_ = child_output(std::move(process_.out), std::move(process_.err));
  ::signal(SIGPIPE, SIG_IGN);  // NOLINT: writing to an exited victim must not kill the test
}

traced_process::~traced_process() {
  // The thread reaps the program, so the pid is valid until the result is set.
  if (result_.valid() && result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    gpushm::base::signal_process(process_.pid, SIGKILL);
  }
}

bool traced_process::write(std::string_view text) {
  return gpushm::base::retry([&] {
           return ::write(process_.in.get(), text.data(), text.size());
         }) == static_cast<ssize_t>(text.size());
}

trace_result traced_process::wait_end(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  bool open = true;
  while (result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (clock::now() >= deadline) {
      gpushm::base::signal_process(process_.pid, SIGKILL);
      throw harness_error("the traced program did not exit in time\n" + output_.all_output());
    }
    const auto slice = std::min(deadline, clock::now() + std::chrono::milliseconds(5));
    if (open) {
      open = output_.read_some(slice);
    } else {
      result_.wait_until(slice);
    }
  }
  output_.read_to_end(clock::now() + std::chrono::milliseconds(50));
  return result_.get();
}

trace_result traced_run(spawn_options options,
                        std::uint64_t kill_at,
                        std::chrono::milliseconds timeout) {
  traced_process process(std::move(options), kill_at);
  return process.wait_end(timeout);
}

}  // namespace gpushm_testing
