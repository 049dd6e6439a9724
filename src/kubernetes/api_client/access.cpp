// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/files/syscall.hpp"
#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

namespace {

std::string variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the agent sets no variables
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

server_access in_cluster_access(const std::string& directory) {
  const std::string host = variable("KUBERNETES_SERVICE_HOST");
  const std::string port = variable("KUBERNETES_SERVICE_PORT");
  if (host.empty() || port.empty()) {
    throw error(
        errc::peer_unreachable,
        "find the API server",
        {},
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: not running in a pod",
        "use a kubeconfig");
  }
  const bool brackets = host.find(':') != std::string::npos && host.front() != '[';
  server_access access;
  access.url =
      fmt::format("https://{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port);
  access.token_file = directory + "/token";
  access.authority_file = directory + "/ca.crt";
  for (const std::string& file : {access.token_file, access.authority_file}) {
    if (::access(file.c_str(), R_OK) != 0) {
      const int number = errno;
      const bool missing = number == ENOENT;
      throw error(errc::peer_unreachable,
                  "find the API server",
                  {},
                  missing ? "there is no " + file
                          : fmt::format("cannot read {}: {}", file, base::errno_text(number)),
                  missing ? "mount the service account's token (automountServiceAccountToken)"
                          : "check the file and its permissions");
    }
  }
  return access;
}

}  // namespace gpushm::api_client
