// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/role_process.hpp"

#include <fmt/core.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include "base/process/signals.hpp"

namespace gpushm::cli {

namespace {

base::child_process start(const std::string& role,
                          const std::vector<std::string>& arguments,
                          int cancel_fd) {
  base::child_options options;
  options.argv = {base::executable_path(), "demo-role", role};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.cancel_fd = cancel_fd;
  return base::child_process::start(options);
}

// Reports contain the code's name; only another version can send an unknown one.
errc code_named(const std::string& name) {
  for (std::uint16_t value = 1; to_string(static_cast<errc>(value)) != "unknown"; ++value) {
    if (to_string(static_cast<errc>(value)) == name) {
      return static_cast<errc>(value);
    }
  }
  return errc::system_error;
}

}  // namespace

role_process::role_process(std::string role,
                           const std::vector<std::string>& arguments,
                           int cancel_fd)
    : role_(std::move(role)), child_(start(role_, arguments, cancel_fd)), pid_(child_.pid()) {}

json role_process::expect(std::string_view event, base::deadline until) {
  std::optional<std::string> line;
  try {
    line = child_.read_line(until);
  } catch (const error& failure) {
    throw error(failure.code(),
                "wait for",
                role_,
                fmt::format("{}, expecting \"{}\"", failure.cause(), event),
                failure.next_step());
  }
  if (!line) {
    const auto status = child_.wait(until);
    throw error(errc::peer_died,
                "wait for",
                role_,
                fmt::format("it ended ({}) before reporting \"{}\"",
                            status ? base::status_text(*status) : "no status",
                            event));
  }
  json report = json::parse(*line, nullptr, false);
  if (report.is_discarded() || !report.is_object()) {
    throw error(errc::protocol_error, "wait for", role_, "malformed report: " + *line);
  }
  const std::string actual = report.value("event", "");
  if (actual == "failed") {
    const json& failure = report.at("error");
    throw error(
        code_named(failure.value("code", "")), "demo process", role_, failure.value("message", ""));
  }
  if (actual != event) {
    throw error(errc::protocol_error,
                "wait for",
                role_,
                fmt::format("expected \"{}\", received {}", event, *line));
  }
  return report;
}

void role_process::finish(base::deadline until) {
  child_.close_input();
  const auto status = child_.wait(until);
  if (!status) {
    throw error(errc::timed_out, "stop", role_, "it did not exit in time");
  }
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    throw error(errc::peer_died, "stop", role_, "it ended: " + base::status_text(*status));
  }
}

void role_process::kill_and_wait(base::deadline until) {
  base::signal_process(pid_, SIGKILL);
  const auto status = child_.wait(until);
  if (!status || !WIFSIGNALED(*status) || WTERMSIG(*status) != SIGKILL) {
    throw error(errc::system_error,
                "kill",
                role_,
                status ? "it ended: " + base::status_text(*status) : "it did not die in time");
  }
}

}  // namespace gpushm::cli
