// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gpushm::agent {

/// Sources of the responses.
struct web_sources {
  std::function<std::string()> not_alive;  ///< the reason; empty: alive
  std::function<std::string()> not_ready;  ///< the reason; empty: ready
  std::function<std::string()> metrics;    ///< Prometheus' text format
};

/// Bounds of a `web_server`.
struct web_limits {
  std::size_t connections = 32;
  /// From accepting a connection to the end of its response.
  std::chrono::milliseconds timeout{2'000};
};

/// Whether `web_server` accepts the address: "0.0.0.0:9410", "[::]:9410".
[[nodiscard]] bool is_web_address(std::string_view address);

/// Serves /healthz and /readyz (200, or 503 with the reason) and /metrics, by GET and HEAD, to any
/// client that can reach the port. A flood of connections takes few descriptors from the brokers
/// and does not delay probes: at most 32 are open, each for two seconds. Another one closes one of
/// the address with the most connections: the oldest whose response is not being written, else the
/// oldest. Thread-safety: distinct objects: safe; shared objects: safe.
class web_server {
 public:
  /// `address`: an IP address with a port; port 0: any free port. "[::]" is every IPv6 and IPv4
  /// address, and falls back to "0.0.0.0" if the kernel has no IPv6. Throws `error`
  /// (invalid_argument, address_in_use, permission_denied).
  web_server(const std::string& address, web_sources sources, web_limits limits = {});
  web_server(const web_server&) = delete;
  web_server& operator=(const web_server&) = delete;
  ~web_server();

  [[nodiscard]] int port() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::agent
