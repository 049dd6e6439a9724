// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/role_channel.hpp"

#include <unistd.h>

#include "apps/gpushm/output.hpp"
#include "base/files/syscall.hpp"

namespace gpushm::cli {

void report(std::string_view event, const json& details) {
  json line{{"event", event}};
  line.update(details);
  print_json(line);
}

std::string next_command() {
  std::string line;
  for (;;) {
    char c = 0;
    const auto count = base::retry([&] { return ::read(STDIN_FILENO, &c, 1); });
    if (count <= 0 || c == '\n') {
      return line;
    }
    line += c;
  }
}

}  // namespace gpushm::cli
