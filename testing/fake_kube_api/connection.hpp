// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "testing/fake_kube_api/certificates.hpp"

namespace gpushm::testing {

/// What a server presents in TLS, and whom it lets in.
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

/// An accepted TCP connection, in the clear or in TLS. Reading and writing belong to one thread,
/// `cut` and `peer_gone` to any.
class server_connection {
 public:
  server_connection(base::unique_fd socket, const tls_settings* tls, std::size_t number);
  server_connection(const server_connection&) = delete;
  server_connection& operator=(const server_connection&) = delete;
  ~server_connection();

  [[nodiscard]] std::size_t number() const noexcept { return number_; }
  /// Greets in TLS. False: the peer did not like it, or left.
  [[nodiscard]] bool accept();
  /// Common name of the client's certificate; empty: none.
  [[nodiscard]] std::string client_name() const;
  /// What has come; empty: the peer has closed, was silent for a minute, or `cut`.
  [[nodiscard]] std::string read();
  /// False when the peer is gone.
  bool write(std::string_view bytes);
  [[nodiscard]] bool peer_gone() const;
  /// Ends both directions at once.
  void cut() noexcept;

 private:
  struct secured;
  base::unique_fd socket_;
  std::unique_ptr<secured> secured_;
  std::size_t number_;
};

}  // namespace gpushm::testing
