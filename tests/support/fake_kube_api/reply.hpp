// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/support/fake_kube_api/paths.hpp"

namespace gpushm::testing {

/// A complete response.
struct reply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  int retry_after_seconds = 0;
};

[[nodiscard]] inline reply json_reply(const nlohmann::json& body, int status = 200) {
  return {status, body.dump(), "application/json", 0};
}

/// A Status object. `details` may be null.
[[nodiscard]] inline reply status_reply(int code,
                                        std::string_view reason,
                                        std::string_view message,
                                        const nlohmann::json& details = nullptr) {
  nlohmann::json body{{"kind", "Status"},
                      {"apiVersion", "v1"},
                      {"metadata", nlohmann::json::object()},
                      {"status", code < 300 ? "Success" : "Failure"},
                      {"message", message},
                      {"reason", reason},
                      {"code", code}};
  if (!details.is_null()) {
    body["details"] = details;
  }
  return json_reply(body, code);
}

/// A real server's response to unknown paths.
[[nodiscard]] inline reply no_such_page() {
  return {404, "404 page not found\n", "text/plain; charset=utf-8", 0};
}

}  // namespace gpushm::testing
