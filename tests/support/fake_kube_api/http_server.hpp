// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/fake_kube_api/connection.hpp"

namespace gpushm::testing {

struct http_request {
  std::string method;
  std::string path;   ///< decoded
  std::string query;  ///< decoded
  std::map<std::string, std::string> parameters;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
};

/// Sends the response of a handler.
class http_answer {
 public:
  explicit http_answer(server_connection& connection) : to_(connection) {}

  [[nodiscard]] server_connection& connection() const { return to_; }
  /// Sends a complete response.
  bool send(int status,
            std::string_view content_type,
            std::string_view body,
            const std::vector<std::string>& headers = {});
  /// Sends the head of a chunked response; `part` with an empty text ends it.
  bool begin(int status, std::string_view content_type);
  bool part(std::string_view text);

 private:
  server_connection& to_;
};

/// A small HTTP/1.1 server with one thread per connection, so that tests can delay responses and
/// close connections at any byte. The handler runs on these threads; if it returns false, the
/// connection is closed without a further response.
/// Thread-safety: shared objects: safe.
class http_server {
 public:
  using handler = std::function<bool(const http_request&, http_answer&)>;

  /// Throws `std::runtime_error` if it cannot listen.
  http_server(const std::string& address, int port, const tls_settings* tls, handler handle);
  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;
  /// Closes all connections.
  ~http_server();

  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] std::size_t accepted() const;
  [[nodiscard]] std::size_t open() const;

 private:
  struct served {
    std::shared_ptr<server_connection> connection;
    std::thread thread;
    bool finished = false;
  };

  void accept_all();
  void serve(server_connection& connection);
  void reap(bool every_one);

  const tls_settings* tls_;
  handler handle_;
  int port_ = 0;  // initialised together with the next member
  base::unique_fd listening_;
  mutable std::mutex mutex_;
  bool stopping_ = false;
  std::size_t accepted_ = 0;
  std::list<served> served_;
  std::thread acceptor_;
};

}  // namespace gpushm::testing
