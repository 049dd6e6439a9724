// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::kube {

/// What an API server answered instead of what was asked for.
class api_error : public error {
 public:
  /// `status` is HTTP's; `reason` the Status object's ("Conflict", "Expired"), else empty.
  api_error(int status,
            std::string reason,
            std::string_view operation,
            std::string_view path,
            std::string_view cause,
            std::string_view next_step = {});

  [[nodiscard]] int status() const noexcept { return status_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] bool not_found() const noexcept { return status_ == 404; }
  [[nodiscard]] bool conflict() const noexcept { return status_ == 409; }
  /// A watch or a list from a version that the server no longer has.
  [[nodiscard]] bool gone() const noexcept { return status_ == 410; }

 private:
  int status_;
  std::string reason_;
};

/// Where the API server is and who asks. Files are read again when they change, so that tokens and
/// authorities can be rotated.
struct server_access {
  std::string url;                    ///< "https://10.0.0.1:443", "https://[fd00::1]:6443"
  std::string authority_file = {};    ///< PEM; empty: the system's
  std::string token_file = {};        ///< a bearer token; empty: none
  std::string token = {};             ///< one that does not change, used when there is no file
  std::string certificate_file = {};  ///< of this client, PEM
  std::string key_file = {};
  std::string server_name = {};  ///< that the certificate must have, when not the URL's
  bool verify = true;
};

/// Of a pod: $KUBERNETES_SERVICE_HOST, _PORT and the files below
/// /var/run/secrets/kubernetes.io/serviceaccount. Throws `error` (unreachable) outside of one.
[[nodiscard]] server_access in_cluster_access();
/// Of a kubeconfig (YAML or JSON); an empty `context`: its current one. Credential plugins are not
/// run. Throws `error` (invalid_argument), naming what is missing or wrong.
[[nodiscard]] server_access kubeconfig_access(const std::string& path,
                                              const std::string& context = {});

struct client_options {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds request_timeout{10'000};  ///< not of a watch
  std::size_t max_response_bytes = 16UL << 20U;
  std::string user_agent = "gpushmd";
  base::operation_observer* observer = nullptr;  ///< not owned
};

struct watch_event {
  std::string type;  ///< "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
  nlohmann::json object;
};

/// Requests to a Kubernetes API server over HTTP/1.1 and TLS (libcurl). Nothing is retried here but
/// a request that was refused with 401 while the token's file has changed: once.
///
/// Every function blocks, at most for the request timeout, and throws `api_error`, or `error`
/// (unreachable, timed_out, protocol_error, message_too_large). Paths begin with '/', are put
/// together by the caller and name one resource or a collection ("/apis/resource.k8s.io/v1/…").
///
/// Distinct objects: safe. Shared objects: safe.
class client {
 public:
  explicit client(server_access access, client_options options = {});
  client(const client&) = delete;
  client& operator=(const client&) = delete;
  ~client();

  [[nodiscard]] nlohmann::json get(const std::string& path) const;
  /// All pages of a collection in one object with `items` and the metadata of the last page.
  [[nodiscard]] nlohmann::json list(const std::string& path,
                                    const std::string& field_selector = {}) const;
  /// POST. What the server made of it.
  nlohmann::json create(const std::string& path, const nlohmann::json& object) const;
  /// PUT: with the object's resourceVersion a conflict when somebody else wrote meanwhile.
  nlohmann::json replace(const std::string& path, const nlohmann::json& object) const;
  /// DELETE; only the object with `uid` when that is not empty.
  void remove(const std::string& path, const std::string& uid = {}) const;

  /// Versions of an API group that the server serves, its preferred one first; none when it does
  /// not know the group.
  [[nodiscard]] std::vector<std::string> versions_of(const std::string& group) const;

  /// Calls `on_event` for what happens in a collection after `resource_version`, bookmarks
  /// included. Returns when the server ends the stream, as it does now and then, or soon (100 ms)
  /// after `stop`. An error event is thrown (`gone()`: list again). A stream that says nothing for
  /// over six minutes counts as dead (servers end watches and send bookmarks before that).
  void watch(const std::string& path,
             const std::string& resource_version,
             const std::string& field_selector,
             const std::function<void(const watch_event&)>& on_event,
             const std::stop_token& stop) const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// A collection kept at hand: listed, watched, resumed after a stream's end, listed anew after 410,
/// with back-off (100 ms to 30 s) after failures. A thread of its own.
///
/// Distinct objects: safe. Shared objects: safe.
class collection_watch {
 public:
  /// Both run on the watch's thread and must not throw; `lists` gets the items of each list, whole.
  struct handler {
    std::function<void(const std::vector<nlohmann::json>&)> listed;
    std::function<void(const watch_event&)> event;
  };
  /// `through` must outlive the watch.
  collection_watch(const client& through, std::string path, std::string field_selector, handler to);
  collection_watch(const collection_watch&) = delete;
  collection_watch& operator=(const collection_watch&) = delete;
  /// Ends the thread; waits for a running handler.
  ~collection_watch();

  /// Listed and watching without a failure since.
  [[nodiscard]] bool is_current() const noexcept;
  /// Empty while there is none.
  [[nodiscard]] std::string last_failure() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::kube
