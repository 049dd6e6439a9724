// SPDX-License-Identifier: Apache-2.0
#include "apps/support/style.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

namespace gpushm::app {

style style::of(int fd) {
  // NOLINTBEGIN(concurrency-mt-unsafe): no code changes the environment
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  // NOLINTEND(concurrency-mt-unsafe)
  const bool disabled = no_color != nullptr && *no_color != '\0';
  const bool capable = terminal != nullptr && std::string_view(terminal) != "dumb";
  return style(!disabled && capable && ::isatty(fd) == 1);
}

std::string style::mark(std::string_view code, std::string_view text) const {
  if (!on_ || text.empty()) {
    return std::string(text);
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace gpushm::app
