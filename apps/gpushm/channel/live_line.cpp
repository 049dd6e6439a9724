// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/live_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"

namespace gpushm::cli {

namespace {

constexpr std::chrono::milliseconds interval{200};

std::size_t columns() {
  winsize size{};
  constexpr std::size_t usual = 80;
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : usual;
}

}  // namespace

live_line::live_line() : terminal_(::isatty(STDERR_FILENO) == 1), next_(clock::now() + interval) {}

void live_line::draw(const std::string& text) {
  // A line as wide as the terminal would wrap in some.
  const std::string line = base::shortened(base::printable(text), columns() - 1);
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  drawn_ = true;
  next_ = clock::now() + interval;
}

void live_line::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }
}

}  // namespace gpushm::cli
