// SPDX-License-Identifier: Apache-2.0
#include "client/socket_path.hpp"

#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::detail {

std::string default_socket_path(const std::string& domains) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): unsafe only if the environment changes concurrently
  if (const char* chosen = std::getenv("GPUSHM_SOCKET"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(domains, ignored)) {
    if (entry.is_directory(ignored)) {
      found.push_back(entry.path().filename().string());
    }
  }
  if (found.empty()) {
    return domains + "/default/socket";
  }
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    std::string names;
    for (const std::string& name : found) {
      names += (names.empty() ? "" : ", ") + name;
    }
    throw error(
        errc::ambiguous_domain,
        "connect",
        domains,
        "several domains are mounted: " + names,
        "name one, for instance GPUSHM_SOCKET=" + domains + "/" + found.front() + "/socket");
  }
  return domains + "/" + found.front() + "/socket";
}

std::string absolute_socket_path(const std::string& path) {
  std::error_code failed;
  std::string absolute = std::filesystem::absolute(path, failed).string();
  return failed || absolute.size() >= sizeof sockaddr_un::sun_path ? path : absolute;
}

}  // namespace gpushm::detail
