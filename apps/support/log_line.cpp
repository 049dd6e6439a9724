// SPDX-License-Identifier: Apache-2.0
#include "apps/support/log_line.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <mutex>

#include "base/syscall.hpp"

namespace gpushm::app {

namespace {

std::mutex writing;
std::size_t dropped = 0;  // since the last line

/// A pipe that is writable has room for PIPE_BUF bytes (pipe(7)).
bool write_whole(std::string_view line, int to) noexcept {
  pollfd entry{to, POLLOUT, 0};
  // POLLERR: nobody reads it, and SIGPIPE would end this program.
  return line.size() <= PIPE_BUF && base::retry([&] { return ::poll(&entry, 1, 0); }) > 0 &&
         entry.revents == POLLOUT &&
         base::retry([&] { return ::write(to, line.data(), line.size()); }) >= 0;
}

bool write_line(std::string_view program, std::string_view text, int to) noexcept {
  std::array<char, PIPE_BUF> line{};
  const auto end = fmt::format_to_n(line.data(), line.size() - 1, "{}: {}", program, text).size;
  const std::size_t size = std::min(end, line.size() - 1);
  line.at(size) = '\n';
  return write_whole({line.data(), size + 1}, to);
}

/// `write` returns false if the line is dropped.
template <typename Write>
void write_or_count(std::string_view program, int to, Write&& write) noexcept {
  const std::lock_guard lock(writing);
  if (dropped != 0) {
    std::array<char, 64> note{};
    const auto end =
        fmt::format_to_n(note.data(), note.size(), "{} lines were dropped", dropped).size;
    if (!write_line(program, {note.data(), std::min(end, note.size())}, to)) {
      ++dropped;
      return;
    }
    dropped = 0;
  }
  if (!write()) {
    ++dropped;
  }
}

}  // namespace

void write_log_line(std::string_view program, std::string_view text, int to) noexcept {
  write_or_count(program, to, [&] { return write_line(program, text, to); });
}

void write_formatted_line(std::string_view program, std::string_view line, int to) noexcept {
  write_or_count(program, to, [&] { return write_whole(line, to); });
}

}  // namespace gpushm::app
