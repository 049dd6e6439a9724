// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/client.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text/size_text.hpp"
#include "kubernetes/api_client/bearer_token.hpp"
#include "kubernetes/api_client/connection_pool.hpp"
#include "kubernetes/api_client/reply.hpp"
#include "kubernetes/api_client/resource_path.hpp"
#include "kubernetes/api_client/transfer.hpp"
#include "kubernetes/api_client/watch_lines.hpp"

namespace gpushm::api_client {

namespace {

using nlohmann::json;

constexpr std::size_t page_size = 500;
// Limit for all pages of a list together, in multiples of the largest response.
constexpr std::size_t max_pages_factor = 8;

std::string text_at(const json& object, const char* pointer) {
  const json::json_pointer where(pointer);
  return object.contains(where) && object.at(where).is_string()
             ? object.at(where).get<std::string>()
             : std::string();
}

/// The request body; throws when the object contains invalid UTF-8.
std::string body_of(std::string_view operation, const std::string& path, const json& object) {
  try {
    return object.dump();
  } catch (const json::exception&) {
    throw error(errc::invalid_argument,
                operation,
                path,
                "the object contains a string that is not UTF-8",
                "correct the text");
  }
}

class observed_operation {
 public:
  observed_operation(base::operation_observer* observer, std::string_view name)
      : observer_(observer), name_(name) {}

  /// Runs `act` and reports the outcome.
  template <typename Act>
  auto run(Act&& act) const {
    try {
      if constexpr (std::is_void_v<decltype(act())>) {
        act();
        report("ok");
      } else {
        auto result = act();
        report("ok");
        return result;
      }
    } catch (const error& failure) {
      report(to_string(failure.code()));
      throw;
    } catch (...) {
      report(to_string(errc::system_error));
      throw;
    }
  }

 private:
  void report(std::string_view outcome) const noexcept {
    if (observer_ != nullptr) {
      observer_->finished(
          "kubernetes_api", name_, outcome, std::chrono::steady_clock::now() - start_);
    }
  }
  base::operation_observer* observer_;
  std::string_view name_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

class client::impl {
 public:
  impl(server_access access, client_options options)
      : access_(std::move(access)),
        options_(std::move(options)),
        server_(dialled(access_)),
        token_(access_),
        pool_(access_, options_) {}

  [[nodiscard]] const client_options& options() const noexcept { return options_; }

  [[nodiscard]] observed_operation observed(std::string_view name) const {
    return {options_.observer, name};
  }

  http_response send(http_request request,
                     const stream_handlers* streamed = nullptr,
                     const std::stop_token& stop = {}) {
    request.token = token_.current();
    http_response response = once(request, streamed, stop);
    if (response.status == 401 && !request.token.empty() && token_.differs_from(request.token)) {
      request.token = token_.current();
      response = once(request, streamed, stop);
    }
    return response;
  }

  json request_object(std::string_view operation,
                      const std::string& path,
                      const char* method,
                      std::string target,
                      std::optional<std::string> body = {},
                      const std::stop_token& stop = {}) {
    const http_response response =
        send({operation, path, method, std::move(target), std::move(body)}, nullptr, stop);
    return object_of({operation, path}, response);
  }

  json list(const std::string& path, const std::string& selector, const std::stop_token& stop) {
    try {
      return pages(path, selector, page_size, stop);
    } catch (const api_error& failure) {
      // Reading the pages took longer than the server keeps old versions.
      if (!failure.gone()) {
        throw;
      }
      return pages(path, selector, 0, stop);
    }
  }

 private:
  http_response once(const http_request& request,
                     const stream_handlers* streamed,
                     const std::stop_token& stop) {
    auto used = pool_.take();
    http_response response = exchange(*used, server_, options_, request, streamed, stop);
    // After a failure, `exchange` has thrown: a failed connection is not reused.
    pool_.put(std::move(used));
    return response;
  }

  json pages(const std::string& path,
             const std::string& selector,
             std::size_t limit,
             const std::stop_token& stop) {
    json result;
    std::size_t bytes = 0;
    std::string next;
    do {
      std::string target = fmt::format("{}?limit={}", path, limit);
      if (!selector.empty()) {
        target.append("&fieldSelector=").append(query_escaped(selector));
      }
      if (!next.empty()) {
        target.append("&continue=").append(query_escaped(next));
      }
      const http_response response = send({"list", path, "GET", std::move(target)}, nullptr, stop);
      bytes += response.body.size();
      json page = object_of({"list", path}, response);
      if (page.contains("items") && page["items"].is_null()) {
        page["items"] = json::array();
      }
      if (!page.contains("items") || !page["items"].is_array() || !page.contains("metadata")) {
        throw error(errc::protocol_error,
                    "list",
                    path,
                    "the reply is not a list",
                    "check that the path is a collection's");
      }
      next = text_at(page, "/metadata/continue");
      check_progress(path, page, next, bytes);
      if (result.is_null()) {
        result = std::move(page);
      } else {
        result["metadata"] = std::move(page["metadata"]);
        for (json& each : page["items"]) {
          result["items"].push_back(std::move(each));
        }
      }
    } while (!next.empty());
    return result;
  }

  void check_progress(const std::string& path,
                      const json& page,
                      const std::string& next,
                      std::size_t bytes) const {
    if (bytes > options_.max_response_bytes * max_pages_factor) {
      throw error(errc::message_too_large,
                  "list",
                  path,
                  "the pages together exceed " +
                      base::size_text(options_.max_response_bytes * max_pages_factor),
                  "request less data");
    }
    if (!next.empty() && page["items"].empty()) {
      throw error(errc::protocol_error,
                  "list",
                  path,
                  "a page without items announces more items",
                  "check the API server's log");
    }
  }

  server_access access_;
  client_options options_;
  dialled_url server_;
  bearer_token token_;
  connection_pool pool_;
};

client::client(server_access access, client_options options)
    : impl_(std::make_unique<impl>(std::move(access), std::move(options))) {}

client::~client() = default;

json client::get(const std::string& path) const {
  return impl_->observed("GET").run(
      [&] { return impl_->request_object("get", path, "GET", path); });
}

json client::list(const std::string& path,
                  const std::string& field_selector,
                  const std::stop_token& stop) const {
  return impl_->observed("LIST").run([&] { return impl_->list(path, field_selector, stop); });
}

json client::create(const std::string& path, const json& object) const {
  return impl_->observed("CREATE").run([&] {
    return impl_->request_object("create", path, "POST", path, body_of("create", path, object));
  });
}

json client::replace(const std::string& path, const json& object) const {
  return impl_->observed("UPDATE").run([&] {
    return impl_->request_object("update", path, "PUT", path, body_of("update", path, object));
  });
}

void client::remove(const std::string& path, const std::string& uid) const {
  json options{{"apiVersion", "v1"}, {"kind", "DeleteOptions"}};
  if (!uid.empty()) {
    options["preconditions"] = {{"uid", uid}};
  }
  impl_->observed("DELETE").run([&] {
    static_cast<void>(
        impl_->request_object("delete", path, "DELETE", path, body_of("delete", path, options)));
  });
}

std::vector<std::string> client::versions_of(const std::string& group) const {
  const std::string path = group.empty() ? "/api" : "/apis/" + group;
  json answer;
  try {
    answer = get(path);
  } catch (const api_error& failure) {
    if (failure.not_found()) {
      return {};
    }
    throw;
  }
  std::vector<std::string> versions;
  const std::string preferred = text_at(answer, "/preferredVersion/version");
  if (!preferred.empty()) {
    versions.push_back(preferred);
  }
  for (const json& each : answer.value("versions", json::array())) {
    const std::string version =
        each.is_string() ? each.get<std::string>() : text_at(each, "/version");
    if (!version.empty() && version != preferred) {
      versions.push_back(version);
    }
  }
  return versions;
}

void client::watch(const std::string& path,
                   const std::string& resource_version,
                   const std::string& field_selector,
                   const std::function<void(const watch_event&)>& on_event,
                   const std::stop_token& stop,
                   const std::function<void()>& on_open) const {
  const client_options& options = impl_->options();
  std::string target =
      fmt::format("{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
                  path,
                  options.watch_time.count(),
                  query_escaped(resource_version));
  if (!field_selector.empty()) {
    target.append("&fieldSelector=").append(query_escaped(field_selector));
  }
  watch_lines lines({"watch", path}, options.max_response_bytes, on_event);
  const stream_handlers streamed{[&on_open] {
                                   if (on_open) {
                                     on_open();
                                   }
                                 },
                                 [&lines](std::string_view bytes) { return lines.take(bytes); },
                                 options.watch_silence};
  impl_->observed("WATCH").run([&] {
    try {
      const http_response response =
          impl_->send({"watch", path, "GET", std::move(target)}, &streamed, stop);
      if (response.status != 200) {
        static_cast<void>(object_of({"watch", path}, response));
      }
    } catch (const error&) {
      if (!stop.stop_requested()) {
        throw;
      }
    }
  });
}

}  // namespace gpushm::api_client
