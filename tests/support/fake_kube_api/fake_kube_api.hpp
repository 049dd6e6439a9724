// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::testing {

struct fake_kube_options {
  /// Of resource.k8s.io, the preferred one first; empty: without the group, as with DRA disabled.
  std::vector<std::string> resource_versions = {"v1", "v1beta2", "v1beta1"};
  /// Replies to paths that are not served with a Status of reason NotFound, as newer servers do,
  /// instead of plain text.
  bool unserved_has_status = false;
  /// Listening address; may be "::1".
  std::string address = "127.0.0.1";
  /// 0: any free port.
  int port = 0;
  /// HTTPS, with a certificate of an authority created for this object.
  bool tls = false;
  /// DNS names and addresses of the certificate; empty: the listening address.
  std::vector<std::string> certificate_names = {};
  /// Clients need a certificate of the authority.
  bool client_certificates = false;
  /// Accepted bearer tokens; empty: every request is accepted.
  std::vector<std::string> tokens = {};
  /// Number of events kept for watches that resume.
  std::size_t history = 1'000;
  /// Interval of bookmarks on watches that request them; zero: only `send_bookmarks` sends them.
  std::chrono::milliseconds bookmark_interval{0};
  /// Tokens of agents' pods, and their nodes (empty: the token names no node). Requests with these
  /// tokens are checked against the ValidatingAdmissionPolicy resourceslices.gpushm.dev. Other
  /// tokens may write everything.
  std::map<std::string, std::string> agents = {};
  /// A mutating webhook for objects that are created or replaced. Runs under a lock.
  std::function<void(nlohmann::json&)> mutate = {};
  /// Upper bound of the items of a page; 0: none. The smaller of it and the request's `limit`
  /// applies.
  std::size_t longest_page = 0;
};

/// A received request and the status of its response.
struct kube_request {
  std::string method;  ///< "GET"
  std::string path;    ///< without the query
  std::string query;   ///< decoded, "watch=1&fieldSelector=spec.driver=gpushm.dev"
  std::string authorization;
  std::string user_agent;
  std::string body;
  std::string client_name;     ///< of the client's certificate; empty without one
  std::size_t connection = 0;  ///< number of its connection, from 1
  int status = 0;              ///< 0: no response (yet)
  std::chrono::steady_clock::time_point at{};
};

/// A failure of the next matching requests.
struct kube_failure {
  std::string method = {};       ///< empty: any
  std::string path_prefix = {};  ///< empty: any
  /// "watch=1": must be in the query; empty: any.
  std::string query_part = {};
  int times = 1;
  std::chrono::milliseconds delay{0};  ///< before anything else
  /// Reply with a Status of this code instead of executing the request; 0: execute it.
  int status = 0;
  std::string reason = {};   ///< of the Status
  std::string message = {};  ///< of the Status
  int retry_after_seconds = 0;
  bool cut = false;  ///< close the connection instead of replying
  /// Execute the request, then close the connection without a response.
  bool lose_answer = false;
};

/// The parts of a Kubernetes API server that a node agent uses, for ResourceSlices, ResourceClaims
/// (and their status), Nodes and Pods: discovery, several versions of resource.k8s.io with
/// conversion between them, create, get, list with selectors and pages, replace with conflicts,
/// delete with preconditions, watches with history and bookmarks, validation (422), and the agents'
/// admission policy. README.md lists what each behaviour was compared with. Runs its threads until
/// destruction, which closes all connections. Thread-safety: distinct objects: safe; shared
/// objects: safe.
class fake_kube_api {
 public:
  using json = nlohmann::json;

  /// Throws `std::runtime_error` if it cannot listen.
  explicit fake_kube_api(fake_kube_options options = {});
  fake_kube_api(const fake_kube_api&) = delete;
  fake_kube_api& operator=(const fake_kube_api&) = delete;
  ~fake_kube_api();

  /// "http://127.0.0.1:40000", "https://[::1]:40000".
  [[nodiscard]] std::string url() const;
  [[nodiscard]] int port() const;
  /// PEM of the authority that signed the server's certificate; with `tls` only.
  [[nodiscard]] std::string authority_pem() const;
  /// PEM of a new client certificate for user `name` and of its key; with `tls` only.
  struct client_identity {
    std::string certificate_pem;
    std::string key_pem;
  };
  [[nodiscard]] client_identity make_client_identity(const std::string& name) const;

  // ---- objects, bypassing authentication, failures and records ----

  /// Creates or replaces the object at `path` ("/api/v1/nodes/a",
  /// "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c"). Fills in apiVersion, kind, name,
  /// namespace and the fields that a server adds; keeps an existing uid. Does not validate. Returns
  /// the stored object.
  json put(const std::string& path, json object = json::object());
  /// False if the object does not exist.
  bool erase(const std::string& path);
  [[nodiscard]] std::optional<json> find(const std::string& path) const;
  /// The items of a collection ("/apis/resource.k8s.io/v1/resourceslices") in one or all
  /// namespaces.
  [[nodiscard]] std::vector<json> items(const std::string& path) const;
  /// Blocks until `is` returns true for the items of a collection, or for one object of it. False
  /// after `timeout`.
  [[nodiscard]] bool wait_for(const std::string& path,
                              const std::function<bool(const std::vector<json>&)>& is,
                              std::chrono::milliseconds timeout) const;

  // ---- watches ----

  /// Number of open watches.
  [[nodiscard]] std::size_t watches() const;
  /// Blocks until at least `count` watches are open. False after `timeout`.
  [[nodiscard]] bool wait_for_watches(std::size_t count, std::chrono::milliseconds timeout) const;
  /// Ends every open watch as if its time limit had expired.
  void end_watches();
  /// Closes the connections of all watches without ending the streams.
  void cut_watches();
  void send_bookmarks();
  /// Drops all events: resuming from an earlier version fails with 410 Gone, and open watches get
  /// an error event with that code.
  void expire_history();

  // ---- authentication and failures ----

  /// Replaces the accepted tokens.
  void set_tokens(std::vector<std::string> tokens);
  void set_resource_versions(std::vector<std::string> versions);
  /// Failures apply in the order in which they were added.
  void fail(kube_failure failure);
  void clear_failures();
  /// Closes all connections and the listening socket. `start` listens on the same port again.
  /// Objects are kept.
  void stop();
  void start();

  // ---- records ----

  [[nodiscard]] std::vector<kube_request> requests() const;
  void clear_requests();
  /// Blocks until `is` returns true for a request, including earlier ones. False after `timeout`.
  [[nodiscard]] bool wait_for_request(const std::function<bool(const kube_request&)>& is,
                                      std::chrono::milliseconds timeout) const;
  /// Number of connections accepted so far.
  [[nodiscard]] std::size_t connections() const;
  [[nodiscard]] std::size_t open_connections() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::testing
