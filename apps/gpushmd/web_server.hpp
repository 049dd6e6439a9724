// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gpushm::agent {

/// What is asked over HTTP.
struct web_answers {
  std::function<std::string()> not_alive;  ///< why; empty: alive
  std::function<std::string()> not_ready;  ///< why; empty: ready
  std::function<std::string()> metrics;    ///< Prometheus' text format
};

/// As `web_server` takes it: "0.0.0.0:9410", "[::]:9410".
[[nodiscard]] bool is_web_address(std::string_view address);

/// /healthz and /readyz (200, or 503 with the reason) and /metrics, by GET and HEAD, for everybody
/// who reaches the port. A flood of connections takes few descriptors from the brokers and does not
/// keep probes waiting: at most 32 are open, for five seconds, and one more closes the oldest.
///
/// Distinct objects: safe. Shared objects: safe.
class web_server {
 public:
  /// `address`: an IP address with a port; port 0: any. "[::]" is every address, IPv4's too, and
  /// "0.0.0.0" where the kernel has no IPv6. Throws `error` (invalid_argument, address_in_use,
  /// permission_denied).
  web_server(const std::string& address, web_answers answers);
  web_server(const web_server&) = delete;
  web_server& operator=(const web_server&) = delete;
  ~web_server();

  [[nodiscard]] int port() const noexcept;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::agent
