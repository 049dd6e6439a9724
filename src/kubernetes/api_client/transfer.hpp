// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "kubernetes/api_client/connection.hpp"

namespace gpushm::api_client {

struct http_request {
  std::string_view operation;  ///< for messages: "list"
  std::string_view path;       ///< the same
  std::string method;
  std::string target;  ///< path and query
  std::optional<std::string> body = {};
  std::string token = {};
};

struct http_response {
  int status = 0;
  std::string content_type;
  std::string location;  ///< of a redirect
  std::string body;
  std::chrono::seconds retry_after{0};
};

/// Handlers for a streamed response.
struct stream_handlers {
  /// The server responded with status 200.
  std::function<void()> opened;
  /// Receives bytes as they arrive, after `opened`; false: no line was completed.
  std::function<bool(std::string_view)> bytes;
  std::chrono::milliseconds silence{0};  ///< longest time without a true `bytes`
};

/// Sends a request and collects the reply; with `streamed`, the body of a reply of status 200 is
/// passed to its handlers, which may throw. Blocks until the end of the reply, at most
/// `options.request_timeout` (streamed: for its header). Throws `error`: timed_out (also after
/// `stop`), peer_unreachable, protocol_error, message_too_large.
[[nodiscard]] http_response exchange(connection& over,
                                     const dialled_url& server,
                                     const client_options& options,
                                     const http_request& request,
                                     const stream_handlers* streamed,
                                     const std::stop_token& stop);

}  // namespace gpushm::api_client
