// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "tests/support/fake_kube_api/certificates.hpp"

namespace gpushm::testing {

/// A server's TLS certificate, and the clients that it accepts.
class tls_settings {
 public:
  /// `client_authority`: PEM; empty: clients need no certificate. Throws `std::runtime_error`.
  tls_settings(const identity_pem& own, const std::string& client_authority, bool required);
  ~tls_settings();

 private:
  friend class server_connection;
  struct context;
  std::unique_ptr<context> context_;
};

/// An accepted TCP connection, plain or with TLS. Only one thread may read and write; `cut` and
/// `peer_gone` are thread-safe.
class server_connection {
 public:
  server_connection(base::unique_fd socket, const tls_settings* tls, std::size_t number);
  server_connection(const server_connection&) = delete;
  server_connection& operator=(const server_connection&) = delete;
  ~server_connection();

  [[nodiscard]] std::size_t number() const noexcept { return number_; }
  /// Completes the TLS handshake. False if it failed or the peer disconnected.
  [[nodiscard]] bool accept();
  /// Common name of the client's certificate; empty without a certificate.
  [[nodiscard]] std::string client_name() const;
  /// Returns received bytes; empty if the peer closed, sent nothing for a minute, or `cut` was
  /// called.
  [[nodiscard]] std::string read();
  /// False if the peer has disconnected.
  bool write(std::string_view bytes);
  [[nodiscard]] bool peer_gone() const;
  /// Shuts down both directions.
  void cut() noexcept;

 private:
  struct secured;
  base::unique_fd socket_;
  std::unique_ptr<secured> secured_;
  std::size_t number_;
};

}  // namespace gpushm::testing
