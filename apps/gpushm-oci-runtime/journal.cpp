// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/journal.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"

namespace gpushm::oci_runtime {

namespace {

using json = nlohmann::ordered_json;

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

std::string line_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

// In double quotes, as Go's and JSON's strings are.
std::string as_quoted(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

const char* name_of(severity severity) {
  switch (severity) {
    case severity::info:
      return "info";
    case severity::warning:
      return "warning";
    case severity::error:
      return "error";
  }
  return "error";
}

// One write, so that lines of several processes do not mix. Returns errno, or 0.
int append_to(const std::string& file, std::string_view line) noexcept {
  const base::unique_fd fd(base::retry([&] {
    return ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
  }));
  if (!fd) {
    return errno;
  }
  const auto count = base::retry([&] { return ::write(fd.get(), line.data(), line.size()); });
  return count == static_cast<ssize_t>(line.size()) ? 0 : count < 0 ? errno : EIO;
}

// Always one line: `text` can contain an image's variables and names.
std::string plain_line(std::string_view text) {
  return base::printable(text) + "\n";
}

void write_stderr(std::string_view text) {
  const std::string line = plain_line(fmt::format("gpushm-oci-runtime: {}", text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

journal::journal(const command_line& called, const settings& chosen)
    : called_(called), chosen_(chosen) {}

void journal::append(const std::string& line) {
  const int number = append_to(chosen_.log, line);
  if (number != 0 && !reported_) {
    reported_ = true;
    write_stderr(fmt::format("write log \"{}\": {}", chosen_.log, base::errno_text(number)));
  }
}

void journal::edit(const logged_edit& edit) {
  if (chosen_.log.empty()) {
    return;
  }
  if (chosen_.log_json) {
    append(line_of({{"time", now()},
                    {"level", "info"},
                    {"container", called_.container},
                    {"device", edit.device},
                    {"edit", edit.text},
                    {"reason", edit.reason}}));
    return;
  }
  append(plain_line(fmt::format("{} info {}: {}: {}, because {}",
                                now(),
                                called_.container,
                                edit.device,
                                edit.text,
                                edit.reason)));
}

void journal::remark(severity severity, std::string_view text) {
  if (chosen_.log.empty()) {
    return;
  }
  if (chosen_.log_json) {
    append(line_of({{"time", now()},
                    {"level", name_of(severity)},
                    {"container", called_.container},
                    {"msg", text}}));
    return;
  }
  append(
      plain_line(fmt::format("{} {} {}: {}", now(), name_of(severity), called_.container, text)));
}

void journal::fail(std::string_view text) {
  remark(severity::error, text);
  report_to_engine(called_, text);
  write_stderr(text);
}

void report_to_engine(const command_line& called, std::string_view text) noexcept {
  if (called.log.empty()) {
    return;
  }
  try {
    const std::string message = fmt::format("gpushm-oci-runtime: {}", text);
    std::string line;
    if (called.log_json) {
      line = line_of({{"level", "error"}, {"msg", message}, {"time", now()}});
    } else {
      line = fmt::format("time={} level=error msg={}\n", as_quoted(now()), as_quoted(message));
    }
    append_to(called.log, line);
  } catch (
      const std::exception&) {  // NOLINT(bugprone-empty-catch): standard error has the message too
  }
}

}  // namespace gpushm::oci_runtime
