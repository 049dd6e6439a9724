// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cdi/document/document.hpp"

namespace gpushm::discover {

/// Things of one kind that were looked for and are not there.
struct absent_things {
  std::string kind;  ///< "programs"
  std::vector<std::string> names;
  bool operator==(const absent_things&) const = default;
};

/// What a search for one kind of thing came to.
struct findings {
  std::vector<cdi::mount> mounts;
  std::vector<std::string> links;       ///< "TARGET::LINK", to be made in the container
  std::vector<std::string> found;       ///< lines for people
  std::vector<absent_things> missing;   ///< what many machines do without
  std::vector<std::string> incomplete;  ///< what will be missed in the container
};

/// How files of the driver are mounted.
[[nodiscard]] const std::vector<std::string>& read_only_options();
/// How sockets are: not read-only, since connecting writes.
[[nodiscard]] const std::vector<std::string>& socket_options();

/// "3 libraries", "1 library".
[[nodiscard]] std::string count_text(std::size_t count, const char* one, const char* many);
/// "a, b and c", or "a, b and 7 more" when there are more than `most`.
[[nodiscard]] std::string list_text(const std::vector<std::string>& items,
                                    std::size_t most = static_cast<std::size_t>(-1));

}  // namespace gpushm::discover
