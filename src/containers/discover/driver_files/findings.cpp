// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/driver_files/findings.hpp"

#include <fmt/core.h>

namespace gpushm::discover {

const std::vector<std::string>& read_only_options() {
  static const std::vector<std::string> options{"ro", "nosuid", "nodev", "rbind", "rprivate"};
  return options;
}

const std::vector<std::string>& socket_options() {
  static const std::vector<std::string> options{"nosuid", "nodev", "rbind", "rprivate", "noexec"};
  return options;
}

std::string count_text(std::size_t count, const char* singular, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? singular : many);
}

std::string list_text(const std::vector<std::string>& items, std::size_t most) {
  const std::size_t shown = items.size() > most ? most - 1 : items.size();
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) {
      text.append(i + 1 == items.size() ? " and " : ", ");
    }
    text.append(items[i]);
  }
  if (shown < items.size()) {
    text += fmt::format(" and {} more", items.size() - shown);
  }
  return text;
}

}  // namespace gpushm::discover
