// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::discover {

/// Items of one kind that were not found.
struct missing_items {
  std::string kind;  ///< "programs"
  std::vector<std::string> names;
  bool operator==(const missing_items&) const = default;
};

/// The result of a search for one kind of item.
struct findings {
  std::vector<cdi::mount> mounts;
  std::vector<std::string> links;       ///< "TARGET::LINK", to be created in the container
  std::vector<std::string> found;       ///< lines for the user
  std::vector<missing_items> missing;   ///< absent, but optional on many machines
  std::vector<std::string> incomplete;  ///< problems that affect the container
  std::vector<std::string> missing_control_nodes;  ///< paths on this machine
};

/// Mount options for driver files.
[[nodiscard]] const std::vector<std::string>& read_only_options();
/// Mount options for sockets: not read-only, because connecting needs write permission.
[[nodiscard]] const std::vector<std::string>& socket_options();

/// "3 libraries", "1 library".
[[nodiscard]] std::string count_text(std::size_t count, const char* singular, const char* many);
/// "a, b and c", or "a, b and 7 more" when there are more than `most`.
[[nodiscard]] std::string list_text(const std::vector<std::string>& items,
                                    std::size_t most = static_cast<std::size_t>(-1));

}  // namespace gpushm::discover
