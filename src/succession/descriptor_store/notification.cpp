// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/notification.hpp"

#include <algorithm>

namespace gpushm::keeper {

bool is_valid_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= max_name_bytes &&
         std::all_of(name.begin(), name.end(), [](char each) {
           return each >= ' ' && each < '\x7f' && each != ':';
         });
}

notification parse_notification(std::string_view text) {
  notification result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line == "FDSTORE=1") {
      result.store = true;
    } else if (line == "FDSTOREREMOVE=1") {
      result.remove = true;
    } else if (line == "BARRIER=1") {
      result.barrier = true;
    } else if (line == "READY=1") {
      result.ready = true;
    } else if (line == "WATCHDOG=1") {
      result.alive = true;
    } else if (constexpr std::string_view key = "FDNAME="; line.starts_with(key)) {
      const std::string_view name = line.substr(key.size());
      result.has_name = is_valid_name(name);
      result.name = result.has_name ? name : default_name;
    }
  }
  return result;
}

}  // namespace gpushm::keeper
