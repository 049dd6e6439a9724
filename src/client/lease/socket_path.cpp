// SPDX-License-Identifier: Apache-2.0
#include "client/lease/socket_path.hpp"

#include <sys/un.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::client_detail {

namespace {

[[noreturn]] void refuse_several(const std::string& place,
                                 const std::vector<std::string>& domains,
                                 const std::string& cause) {
  std::string names;
  for (const std::string& name : domains) {
    names += (names.empty() ? "" : ", ") + name;
  }
  throw error(errc::ambiguous_domain,
              "connect",
              place,
              cause + ": " + names,
              "name one, for instance GPUSHM_SOCKET=" + base::socket_in(place, domains.front()));
}

}  // namespace

std::string chosen_socket_path() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): unsafe only if the environment changes concurrently
  const char* const chosen = std::getenv("GPUSHM_SOCKET");
  return chosen == nullptr ? std::string() : chosen;
}

std::string machine_socket(const std::string& domains) {
  const std::vector<std::string> found = base::domains_in(domains);
  if (found.size() > 1) {
    refuse_several(domains, found, "several domains are mounted");
  }
  return base::socket_in(domains, found.empty() ? base::default_domain : found.front());
}

own_sockets find_own_sockets(const std::vector<base::domains_place>& places) {
  own_sockets result;
  for (const base::domains_place& place : places) {
    if (!place.refusal.empty()) {
      result.refused += "; not used for this user's brokers: " + place.refusal;
      continue;
    }
    if (result.expected.empty() && place.exists) {
      result.expected = base::socket_in(place.path, base::default_domain);
    }
    std::vector<std::string> domains = base::domains_in(place.path);
    if (domains.size() > 1) {
      // Directories of brokers that have ended stay.
      const std::string first = domains.front();
      std::erase_if(domains, [&](const std::string& each) {
        return !base::is_listening(base::socket_in(place.path, each));
      });
      if (domains.size() > 1) {
        refuse_several(place.path, domains, "this user has brokers of several domains");
      }
      if (domains.empty()) {
        domains = {first};
      }
    }
    if (!domains.empty()) {
      result.paths.push_back(base::socket_in(place.path, domains.front()));
    }
  }
  return result;
}

std::string absolute_socket_path(const std::string& path) {
  std::error_code failed;
  std::string absolute = std::filesystem::absolute(path, failed).string();
  return failed || absolute.size() >= sizeof sockaddr_un::sun_path ? path : absolute;
}

}  // namespace gpushm::client_detail
