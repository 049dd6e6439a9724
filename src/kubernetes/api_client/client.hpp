// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/report/operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::api_client {

/// An error response of an API server.
class api_error : public error {
 public:
  /// `status`: of the HTTP response. `reason`: of the Status object ("Conflict", "Expired"), or
  /// empty. The errc: permission_denied (401, 403), gone_or_replaced (404, 409, 410),
  /// already_exists, too_many_requests (429), timed_out (408, 504), peer_unreachable (500, 502,
  /// 503), invalid_argument (other 4xx), protocol_error.
  api_error(int status,
            std::string reason,
            std::string_view operation,
            std::string_view path,
            std::string_view cause,
            std::string_view next_step = {},
            std::chrono::seconds retry_after = std::chrono::seconds(0),
            std::string object_name = {});

  [[nodiscard]] int status() const noexcept { return status_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// The object or the collection does not exist: see `object_is_missing`.
  [[nodiscard]] bool not_found() const noexcept { return status_ == 404; }
  /// The server serves the collection, but the object `name` does not exist in it. For an API
  /// version that it does not serve, a server also responds with 404, and newer servers
  /// (Kubernetes' notfoundhandler) with the reason NotFound; only the former case names the object.
  [[nodiscard]] bool object_is_missing(std::string_view name) const noexcept {
    return status_ == 404 && reason_ == "NotFound" && !name.empty() && object_name_ == name;
  }
  [[nodiscard]] bool conflict() const noexcept { return status_ == 409; }
  /// A watch or list started from a version that the server no longer has.
  [[nodiscard]] bool gone() const noexcept { return status_ == 410; }
  /// The delay that the server requests before a retry; zero: not set.
  [[nodiscard]] std::chrono::seconds retry_after() const noexcept { return retry_after_; }

 private:
  int status_;
  std::string reason_;
  std::chrono::seconds retry_after_;
  std::string object_name_;
};

/// The API server's address and the client's credentials. Changed files are reread, so that tokens
/// and authorities can be rotated.
struct server_access {
  std::string url;                    ///< "https://10.0.0.1:443", "https://[fd00::1]:6443"
  std::string authority_file = {};    ///< PEM; empty: `authority_pem`, or the system's
  std::string authority_pem = {};     ///< as embedded in a kubeconfig
  std::string token_file = {};        ///< a bearer token; empty: none
  std::string token = {};             ///< a fixed token, used without `token_file`
  std::string certificate_file = {};  ///< of this client, PEM; empty: `certificate_pem`, or none
  std::string certificate_pem = {};
  std::string key_file = {};  ///< empty: `key_pem`
  std::string key_pem = {};
  std::string server_name = {};  ///< expected in the certificate, if not the URL's
  std::string proxy_url = {};    ///< empty: none; the environment is ignored
  bool verify = true;
};

/// The access of a pod: $KUBERNETES_SERVICE_HOST, _PORT and the files `token` and `ca.crt` of
/// `directory`. Throws `error` (peer_unreachable) outside of a pod.
[[nodiscard]] server_access in_cluster_access(
    const std::string& directory = "/var/run/secrets/kubernetes.io/serviceaccount");
/// The access of a kubeconfig (YAML or JSON); an empty `context` selects the current one.
/// Credential plugins are not supported. `path` may be several paths separated by ':', as in
/// $KUBECONFIG: then, as in kubectl, missing files are ignored, the first file that defines an
/// entry takes precedence, and paths are relative to their file. Throws `error` (invalid_argument)
/// with the missing or wrong entry.
[[nodiscard]] server_access kubeconfig_access(const std::string& path,
                                              const std::string& context = {});

struct client_options {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds request_timeout{10'000};  ///< not for a watch
  /// The requested duration of a watch; a watch without data for a minute longer is considered
  /// dead.
  std::chrono::seconds watch_time{300};
  std::chrono::milliseconds watch_silence{360'000};
  /// Limit for a response and for a line of a watch; eight times this for all pages of a list.
  std::size_t max_response_bytes = 16UL << 20U;
  std::string user_agent = "gpushmd";
  base::operation_observer* observer = nullptr;  ///< not owned
};

struct watch_event {
  std::string type;  ///< "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
  nlohmann::json object;
};

/// Requests to a Kubernetes API server over HTTP/1.1 and TLS (libcurl). Only two kinds of requests
/// are retried: one rejected with 401 after the token's file has changed, once, and one sent on a
/// kept connection that the server had closed. Redirects are not followed.
///
/// Every function blocks, at most for the request timeout (a list: for each page), and throws
/// `api_error`, or `error` (peer_unreachable, timed_out, protocol_error, message_too_large; for the
/// token's file permission_denied and invalid_argument). Paths begin with '/', are built by the
/// caller and name one resource or a collection ("/apis/resource.k8s.io/v1/…").
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class client {
 public:
  explicit client(server_access access, client_options options = {});
  client(const client&) = delete;
  client& operator=(const client&) = delete;
  ~client();

  [[nodiscard]] nlohmann::json get(const std::string& path) const;
  /// All pages of a collection in one object with `items` and the metadata of the last page. Throws
  /// `error` (timed_out) soon after `stop`.
  [[nodiscard]] nlohmann::json list(const std::string& path,
                                    const std::string& field_selector = {},
                                    const std::stop_token& stop = {}) const;
  /// POST. Returns the object as stored by the server.
  // NOLINTNEXTLINE(modernize-use-nodiscard): few callers need the server's additions
  nlohmann::json create(const std::string& path, const nlohmann::json& object) const;
  /// PUT: fails with a conflict if the object's resourceVersion is not current.
  // NOLINTNEXTLINE(modernize-use-nodiscard): few callers need the result
  nlohmann::json replace(const std::string& path, const nlohmann::json& object) const;
  /// DELETE; if `uid` is not empty, only an object with that UID.
  void remove(const std::string& path, const std::string& uid = {}) const;

  /// Versions of an API group that the server serves, its preferred one first; empty when it does
  /// not serve the group.
  [[nodiscard]] std::vector<std::string> versions_of(const std::string& group) const;

  /// Calls `on_event` for each event of a collection after `resource_version`, including bookmarks.
  /// Returns when the server ends the stream, which it does regularly, or soon (100 ms) after
  /// `stop`. Throws an error event (`gone()`: list again) and whatever `on_event` throws. Throws
  /// timed_out for a stream without data for `client_options::watch_silence` (servers end watches
  /// and send bookmarks before that). `on_open` is called when the server has accepted the watch.
  void watch(const std::string& path,
             const std::string& resource_version,
             const std::string& field_selector,
             const std::function<void(const watch_event&)>& on_event,
             const std::stop_token& stop,
             const std::function<void()>& on_open = {}) const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// Follows a collection: lists, watches, resumes after a stream's end, lists again after 410, with
/// back-off (100 ms to 30 s) after failures. The first 410 is followed by a list immediately, since
/// the server is reachable. Two successive failures are logged once, and so is recovery. Uses a
/// separate thread.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class collection_watch {
 public:
  /// All run on the watch's thread. `listed` receives all items of each list (without apiVersion
  /// and kind, as servers send them); `event` receives each later event exactly once, without
  /// bookmarks. An exception from these is handled like a server failure, followed by another list.
  /// `failed`, which may be empty and must not throw, receives every failure.
  struct handler {
    std::function<void(const std::vector<nlohmann::json>&)> listed;
    std::function<void(const watch_event&)> event;
    std::function<void(const std::exception&)> failed = {};
  };
  /// `through` must outlive the watch.
  collection_watch(const client& through,
                   std::string path,
                   std::string field_selector,
                   handler handler);
  collection_watch(const collection_watch&) = delete;
  collection_watch& operator=(const collection_watch&) = delete;
  /// Ends the thread; waits for a running handler.
  ~collection_watch();

  /// True while listed and watching without a failure since.
  [[nodiscard]] bool is_current() const noexcept;
  /// Empty if none.
  [[nodiscard]] std::string last_failure() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::api_client
