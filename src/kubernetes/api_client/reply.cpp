// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/reply.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "kubernetes/api_client/resource_path.hpp"

namespace gpushm::api_client {

namespace {

using nlohmann::json;

// API objects have about 15 levels; deeply nested text uses disproportionate memory.
constexpr int max_depth = 100;
constexpr std::size_t max_message_bytes = 1'000;

struct too_deep {};

std::string member(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// For use in a log line.
std::string one_line(std::string_view text) {
  std::string line(base::trim(text.substr(0, max_message_bytes)));
  std::replace_if(
      line.begin(),
      line.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7f'; },
      ' ');
  return line;
}

std::string next_step_of(const request_name& name, int status, const std::string& reason) {
  switch (status) {
    case 401:
      return "check that the token or certificate is of this cluster and has not expired";
    case 403:
      return permission_advice(name.operation, name.path);
    case 404:
      return {};
    case 409:
      return reason == "AlreadyExists" ? std::string()
                                       : std::string("read the object again and repeat the change");
    case 410:
      return "list again";
    case 422:
      return "correct the named fields";
    case 429:
    case 503:
      return "try again later";
    default:
      return status >= 500 ? "check the API server's log" : std::string();
  }
}

std::string cause_of(int status,
                     const std::string& reason,
                     std::string_view message,
                     std::chrono::seconds retry_after) {
  std::string cause = fmt::format("the API server replied with {}", status);
  if (!reason.empty()) {
    cause.append(" ").append(one_line(reason));
  }
  if (!message.empty()) {
    cause.append(": ").append(one_line(message));
  }
  if (retry_after.count() > 0) {
    cause += fmt::format("; it requests a wait of {} s", retry_after.count());
  }
  return cause;
}

[[noreturn]] void throw_reply(const request_name& name,
                              int status,
                              const std::string& reason,
                              std::string_view message,
                              std::chrono::seconds retry_after,
                              std::string object_name = {}) {
  throw api_error(status,
                  reason,
                  name.operation,
                  name.path,
                  cause_of(status, reason, message, retry_after),
                  next_step_of(name, status, reason),
                  retry_after,
                  std::move(object_name));
}

[[noreturn]] void throw_error_reply(const request_name& name, const http_response& response) {
  if (response.status >= 300 && response.status < 400) {
    throw api_error(
        response.status,
        {},
        name.operation,
        name.path,
        fmt::format("the server replied with {} and a redirect to {}; redirects are not followed",
                    response.status,
                    base::in_quotes(response.location)),
        "check that the URL is the API server's");
  }
  const auto status = json_of(response.body);
  if (status && status->is_object() && member(*status, "kind") == "Status") {
    throw_status(name, response.status, *status, response.retry_after);
  }
  const bool is_text = response.content_type.starts_with("text/plain");
  throw_reply(name,
              response.status,
              {},
              is_text ? std::string_view(response.body) : std::string_view(),
              response.retry_after);
}

}  // namespace

std::optional<json> json_of(std::string_view text) {
  const auto check_depth = [](int depth, json::parse_event_t /*event*/, json& /*parsed*/) {
    if (depth > max_depth) {
      throw too_deep();
    }
    return true;
  };
  try {
    json parsed = json::parse(text.begin(), text.end(), check_depth, false);
    return parsed.is_discarded() ? std::nullopt : std::optional(std::move(parsed));
  } catch (const too_deep&) {
    return std::nullopt;
  }
}

void throw_status(const request_name& name,
                  int status,
                  const json& object,
                  std::chrono::seconds retry_after) {
  const auto code = object.find("code");
  if (code != object.end() && code->is_number_integer()) {
    const auto value = code->get<std::int64_t>();
    status = value >= 100 && value < 600 ? static_cast<int>(value) : status;
  }
  const json::json_pointer where("/details/retryAfterSeconds");
  if (retry_after.count() == 0 && object.contains(where) && object.at(where).is_number_unsigned()) {
    retry_after =
        std::chrono::seconds(std::min<std::uint64_t>(object.at(where).get<std::uint64_t>(), 3'600));
  }
  const auto details = object.find("details");
  throw_reply(
      name,
      status,
      member(object, "reason"),
      member(object, "message"),
      retry_after,
      details != object.end() && details->is_object() ? member(*details, "name") : std::string());
}

json object_of(const request_name& name, const http_response& response) {
  if (response.status < 200 || response.status >= 300) {
    throw_error_reply(name, response);
  }
  constexpr const char* next_step = "check that the URL is the API server's";
  if (!response.content_type.starts_with("application/json")) {
    throw error(errc::protocol_error,
                name.operation,
                name.path,
                fmt::format("the reply's content type is {}, not application/json",
                            response.content_type.empty() ? "missing"
                                                          : base::in_quotes(response.content_type)),
                next_step);
  }
  auto object = json_of(response.body);
  if (!object || !object->is_object()) {
    throw error(errc::protocol_error,
                name.operation,
                name.path,
                "the reply is not a JSON object",
                next_step);
  }
  return *std::move(object);
}

}  // namespace gpushm::api_client
