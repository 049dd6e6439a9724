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

#include "base/operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::kube {

/// What an API server answered instead of what was asked for.
class api_error : public error {
 public:
  /// `status` is HTTP's; `reason` the Status object's ("Conflict", "Expired"), else empty. The
  /// errc: permission_denied (401, 403), gone_or_replaced (404, 409, 410), already_exists,
  /// too_many_requests (429), timed_out (408, 504), peer_unreachable (500, 502, 503),
  /// invalid_argument (other 4xx), protocol_error.
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
  /// There is no such object, or no such collection: see `object_is_missing`.
  [[nodiscard]] bool not_found() const noexcept { return status_ == 404; }
  /// The server knows the collection, and there is no object called `name` in it. Of a version of
  /// an API that it does not serve a server answers 404, too, and newer ones (Kubernetes'
  /// notfoundhandler) with the reason NotFound; but only the former names the object.
  [[nodiscard]] bool object_is_missing(std::string_view name) const noexcept {
    return status_ == 404 && reason_ == "NotFound" && !name.empty() && object_name_ == name;
  }
  [[nodiscard]] bool conflict() const noexcept { return status_ == 409; }
  /// A watch or a list from a version that the server no longer has.
  [[nodiscard]] bool gone() const noexcept { return status_ == 410; }
  /// How long the server wants to be left alone; zero: it did not say.
  [[nodiscard]] std::chrono::seconds retry_after() const noexcept { return retry_after_; }

 private:
  int status_;
  std::string reason_;
  std::chrono::seconds retry_after_;
  std::string object_name_;
};

/// Where the API server is and who asks. Files are read again when they change, so that tokens and
/// authorities can be rotated.
struct server_access {
  std::string url;                    ///< "https://10.0.0.1:443", "https://[fd00::1]:6443"
  std::string authority_file = {};    ///< PEM; empty: `authority_pem`, or the system's
  std::string authority_pem = {};     ///< what a kubeconfig has in itself
  std::string token_file = {};        ///< a bearer token; empty: none
  std::string token = {};             ///< one that does not change, used when there is no file
  std::string certificate_file = {};  ///< of this client, PEM; empty: `certificate_pem`, or none
  std::string certificate_pem = {};
  std::string key_file = {};  ///< empty: `key_pem`
  std::string key_pem = {};
  std::string server_name = {};  ///< that the certificate must have, when not the URL's
  std::string proxy_url = {};    ///< empty: none, whatever the environment says
  bool verify = true;
};

/// Of a pod: $KUBERNETES_SERVICE_HOST, _PORT and the files `token` and `ca.crt` of `directory`.
/// Throws `error` (peer_unreachable) outside of one.
[[nodiscard]] server_access in_cluster_access(
    const std::string& directory = "/var/run/secrets/kubernetes.io/serviceaccount");
/// Of a kubeconfig (YAML or JSON); an empty `context`: its current one. Credential plugins are not
/// run. `path` may be several with ':' between them, as in $KUBECONFIG: then, as for kubectl, files
/// that are not there are passed over, the first file that names something counts, and relative
/// paths begin where their file is. Throws `error` (invalid_argument), naming what is missing or
/// wrong.
[[nodiscard]] server_access kubeconfig_access(const std::string& path,
                                              const std::string& context = {});

struct client_options {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds request_timeout{10'000};  ///< not of a watch
  /// How long the server is asked to keep a watch open; when nothing has come for a minute more
  /// than that, the watch counts as dead.
  std::chrono::seconds watch_time{300};
  std::chrono::milliseconds watch_silence{360'000};
  /// Of an answer, of a watch's line; of a list's pages together eight times that.
  std::size_t max_response_bytes = 16UL << 20U;
  std::string user_agent = "gpushmd";
  base::operation_observer* observer = nullptr;  ///< not owned
};

struct watch_event {
  std::string type;  ///< "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
  nlohmann::json object;
};

/// Requests to a Kubernetes API server over HTTP/1.1 and TLS (libcurl). Nothing is retried here but
/// a request that was refused with 401 while the token's file has changed, once, and one that went
/// into a kept connection which the server had closed meanwhile. Redirects are not followed.
///
/// Every function blocks, at most for the request timeout (a list: for each page), and throws
/// `api_error`, or `error` (peer_unreachable, timed_out, protocol_error, message_too_large; of the
/// token's file permission_denied and invalid_argument). Paths begin with '/', are put together by
/// the caller and name one resource or a collection ("/apis/resource.k8s.io/v1/…").
///
/// Distinct objects: safe. Shared objects: safe.
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
  /// POST. What the server made of it.
  // NOLINTNEXTLINE(modernize-use-nodiscard): few need to know what the server added
  nlohmann::json create(const std::string& path, const nlohmann::json& object) const;
  /// PUT: with the object's resourceVersion a conflict when somebody else wrote meanwhile.
  // NOLINTNEXTLINE(modernize-use-nodiscard): the same
  nlohmann::json replace(const std::string& path, const nlohmann::json& object) const;
  /// DELETE; only the object with `uid` when that is not empty.
  void remove(const std::string& path, const std::string& uid = {}) const;

  /// Versions of an API group that the server serves, its preferred one first; none when it does
  /// not know the group.
  [[nodiscard]] std::vector<std::string> versions_of(const std::string& group) const;

  /// Calls `on_event` for what happens in a collection after `resource_version`, bookmarks
  /// included. Returns when the server ends the stream, as it does now and then, or soon (100 ms)
  /// after `stop`. An error event is thrown (`gone()`: list again), and so is what `on_event`
  /// throws. A stream that says nothing for `client_options::watch_silence` is thrown as timed_out
  /// (servers end watches and send bookmarks before that). `on_open`: the server has agreed.
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

/// A collection kept at hand: listed, watched, resumed after a stream's end, listed again after
/// 410, with back-off (100 ms to 30 s) after failures. The first 410 is followed by a list at once:
/// the server is there. Two failures in a row are logged once, and so is their end. A thread of its
/// own.
///
/// Distinct objects: safe. Shared objects: safe.
class collection_watch {
 public:
  /// All run on the watch's thread. `listed` gets the items of each list, whole (as servers give
  /// them: without apiVersion and kind); `event` what happened since, without bookmarks, nothing
  /// twice and nothing missing. What these throw is a failure like a server's, and followed by
  /// another list. `failed`, which may be empty and must not throw, hears of every failure.
  struct handler {
    std::function<void(const std::vector<nlohmann::json>&)> listed;
    std::function<void(const watch_event&)> event;
    std::function<void(const std::exception&)> failed = {};
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
