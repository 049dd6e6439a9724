// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kube_api/routes.hpp"

#include <algorithm>

#include "tests/support/fake_kube_api/discovery.hpp"
#include "tests/support/fake_kube_api/objects.hpp"
#include "tests/support/fake_kube_api/watch_stream.hpp"

namespace gpushm::testing {

namespace {

std::string header(const http_request& request, const char* name) {
  const auto found = request.headers.find(name);
  return found == request.headers.end() ? std::string() : found->second;
}

bool applies_to(const kube_failure& failure, const http_request& request) {
  return (failure.method.empty() || failure.method == request.method) &&
         request.path.starts_with(failure.path_prefix) &&
         request.query.find(failure.query_part) != std::string::npos;
}

std::optional<kube_failure> next_failure(kube_state& state, const http_request& request) {
  const auto match =
      std::find_if(state.failures.begin(), state.failures.end(), [&](const kube_failure& each) {
        return applies_to(each, request);
      });
  if (match == state.failures.end()) {
    return std::nullopt;
  }
  kube_failure failure = *match;
  if (--match->times <= 0) {
    state.failures.erase(match);
  }
  return failure;
}

bool is_authenticated(const kube_state& state,
                      const http_request& request,
                      const std::string& client) {
  const std::vector<std::string>& tokens = state.options.tokens;
  if (tokens.empty() || !client.empty()) {
    return true;
  }
  const std::string given = header(request, "authorization");
  return std::any_of(tokens.begin(), tokens.end(), [&given](const std::string& each) {
    return given == "Bearer " + each;
  });
}

/// Identifies its record by number, because tests may clear the list concurrently.
class recorded {
 public:
  recorded(kube_state& state, const http_request& request, const server_connection& connection)
      : state_(state) {
    kube_request created;
    created.method = request.method;
    created.path = request.path;
    created.query = request.query;
    created.authorization = header(request, "authorization");
    created.user_agent = header(request, "user-agent");
    created.body = request.body;
    created.client_name = connection.client_name();
    created.connection = connection.number();
    created.at = at_;
    state.requests.push_back(std::move(created));
    state.changed.notify_all();
  }

  void answered(int status) {
    const auto own = std::find_if(state_.requests.rbegin(),
                                  state_.requests.rend(),
                                  [this](const auto& each) { return each.at == at_; });
    if (own != state_.requests.rend()) {
      own->status = status;
      state_.changed.notify_all();
    }
  }

 private:
  kube_state& state_;
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

reply answer_of(kube_state& state, const http_request& request) {
  if (auto found = answer_discovery(request.path, state.options.resource_versions)) {
    return *found;
  }
  const auto path = parse_path(request.path);
  const auto& versions = state.options.resource_versions;
  const bool served =
      path && (path->kind->group.empty()
                   ? path->version == "v1"
                   : std::find(versions.begin(), versions.end(), path->version) != versions.end());
  const bool has_subresource = path && (path->subresource.empty() ||
                                        (path->subresource == "status" && path->kind->has_status));
  if (served && has_subresource) {
    return answer_object_request(state, *path, request);
  }
  return state.options.unserved_has_status
             ? status_reply(404, "NotFound", "the server could not find the requested resource")
             : no_such_page();
}

bool send(const reply& reply, http_answer& answer) {
  std::vector<std::string> headers;
  if (reply.retry_after_seconds > 0) {
    headers.push_back("Retry-After: " + std::to_string(reply.retry_after_seconds));
  }
  return answer.send(reply.status, reply.content_type, reply.body, headers);
}

bool is_watch(const http_request& request) {
  const auto found = request.parameters.find("watch");
  return request.method == "GET" && found != request.parameters.end() &&
         (found->second == "1" || found->second == "true");
}

}  // namespace

bool serve_request(kube_state& state, const http_request& request, http_answer& answer) {
  std::unique_lock lock(state.mutex);
  recorded record(state, request, answer.connection());
  const auto failure = next_failure(state, request);
  if (failure) {
    state.changed.wait_for(lock, failure->delay, [&state] { return state.stopping; });
  }
  if (state.stopping || (failure && failure->cut)) {
    return false;
  }
  reply created;
  if (failure && failure->status != 0) {
    created = status_reply(failure->status, failure->reason, failure->message);
    created.retry_after_seconds = failure->retry_after_seconds;
  } else if (!is_authenticated(state, request, answer.connection().client_name())) {
    created = status_reply(401, "Unauthorized", "Unauthorized");
  } else if (is_watch(request)) {
    const auto path = parse_path(request.path);
    const auto wanted = request.parameters.find("fieldSelector");
    const auto selector =
        parse_selector(wanted == request.parameters.end() ? std::string() : wanted->second);
    // A watch is refused for the same reasons as a list.
    if (path && path->name.empty() && selector && answer_of(state, request).status == 200) {
      record.answered(200);
      lock.unlock();
      return serve_watch(state, *path, *selector, request, answer);
    }
    created = answer_of(state, request);
  } else {
    created = answer_of(state, request);
  }
  record.answered(created.status);
  lock.unlock();
  return !(failure && failure->lose_answer) && send(created, answer);
}

}  // namespace gpushm::testing
