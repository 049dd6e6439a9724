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
  /// Of resource.k8s.io, the preferred one first; none: the group is not known, as with DRA off.
  std::vector<std::string> resource_versions = {"v1", "v1beta2", "v1beta1"};
  /// What is not served is answered with a Status of the reason NotFound, as newer servers do, and
  /// not with a text.
  bool unserved_has_status = false;
  /// Where it listens; "::1" too.
  std::string address = "127.0.0.1";
  /// 0: any that is free.
  int port = 0;
  /// HTTPS with a certificate of an authority made for this object.
  bool tls = false;
  /// That the certificate is for: DNS names and addresses; none: the address it listens on.
  std::vector<std::string> certificate_names = {};
  /// Clients must have a certificate of the authority.
  bool client_certificates = false;
  /// Bearer tokens that are let in; none: everybody is.
  std::vector<std::string> tokens = {};
  /// How many events are kept for watches that resume.
  std::size_t history = 1'000;
  /// Between bookmarks of a watch that asked for them; zero: none but those of `send_bookmarks`.
  std::chrono::milliseconds bookmark_interval{0};
  /// Tokens of agents' pods, and the nodes on which these run: what they write is held against the
  /// ValidatingAdmissionPolicy resourceslices.gpushm.dev. "": a token that names no node. Others
  /// may write everything.
  std::map<std::string, std::string> agents = {};
  /// What a mutating webhook does to what is to be created or replaced. Runs under a lock.
  std::function<void(nlohmann::json&)> mutate = {};
  /// Of a page when the request does not say; 0: everything. Tests of pages set it low: the
  /// smaller of it and the request's `limit` counts.
  std::size_t longest_page = 0;
};

/// A request as it came, with what it was answered.
struct kube_request {
  std::string method;  ///< "GET"
  std::string path;    ///< without the query
  std::string query;   ///< decoded, "watch=1&fieldSelector=spec.driver=gpushm.dev"
  std::string authorization;
  std::string user_agent;
  std::string body;
  std::string client_name;     ///< of the client's certificate; empty: none
  std::size_t connection = 0;  ///< number of the connection it came over, from 1
  int status = 0;              ///< 0: not answered (yet)
  std::chrono::steady_clock::time_point at{};
};

/// What happens to the next requests that match.
struct kube_failure {
  std::string method = {};       ///< empty: any
  std::string path_prefix = {};  ///< empty: any
  /// "watch=1": must be in the query; empty: any.
  std::string query_part = {};
  int times = 1;
  std::chrono::milliseconds delay{0};  ///< before anything else
  /// Answer a Status with this code instead of doing what was asked; 0: do it.
  int status = 0;
  std::string reason = {};   ///< of the Status
  std::string message = {};  ///< of the Status
  int retry_after_seconds = 0;
  bool cut = false;  ///< close the connection instead of answering
  /// Do what was asked, and then do not tell: the connection is closed.
  bool lose_answer = false;
};

/// A Kubernetes API server of ResourceSlices, ResourceClaims (also their status), Nodes and Pods,
/// as much of one as a node agent meets: discovery, several versions of resource.k8s.io with
/// conversion between them, create, get, list with selectors and pages, replace with conflicts,
/// delete with preconditions, watches with history and bookmarks; validation that answers 422, and
/// the agents' admission policy. README.md beside this says what each behaviour was compared with.
/// Runs threads of its own from its construction until its end, when all connections are closed.
///
/// Distinct objects: safe. Shared objects: safe.
class fake_kube_api {
 public:
  using json = nlohmann::json;

  /// Throws `std::runtime_error` when it cannot listen.
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

  // ---- objects, past authentication, failures and records ----

  /// Creates or replaces the object at `path` ("/api/v1/nodes/a",
  /// "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c"). Fills in apiVersion, kind, name,
  /// namespace and what a server adds; keeps a uid that is given. Not validated. What was stored.
  json put(const std::string& path, json object = json::object());
  /// False when there is no such object.
  bool erase(const std::string& path);
  [[nodiscard]] std::optional<json> find(const std::string& path) const;
  /// Of a collection: "/apis/resource.k8s.io/v1/resourceslices"; all namespaces or one.
  [[nodiscard]] std::vector<json> items(const std::string& path) const;
  /// Of a collection, or of an object in it; blocks until `is` says true of its items. False after
  /// `timeout`.
  [[nodiscard]] bool wait_for(const std::string& path,
                              const std::function<bool(const std::vector<json>&)>& is,
                              std::chrono::milliseconds timeout) const;

  // ---- watches ----

  /// How many are open.
  [[nodiscard]] std::size_t watches() const;
  /// Blocks until at least `count` are open. False after `timeout`.
  [[nodiscard]] bool wait_for_watches(std::size_t count, std::chrono::milliseconds timeout) const;
  /// Ends every open watch the way its time limit would.
  void end_watches();
  /// Closes their connections in the middle.
  void cut_watches();
  void send_bookmarks();
  /// Forgets all events: resuming from before answers 410 Gone, and open watches get an error event
  /// of that code.
  void expire_history();

  // ---- who and how ----

  /// From now on these are let in.
  void set_tokens(std::vector<std::string> tokens);
  void set_resource_versions(std::vector<std::string> versions);
  /// Failures are met in the order of their adding.
  void fail(kube_failure failure);
  void clear_failures();
  /// Closes everything; connecting is refused until `start`, which listens on the same port again.
  /// Objects stay.
  void stop();
  void start();

  // ---- records ----

  [[nodiscard]] std::vector<kube_request> requests() const;
  void clear_requests();
  /// Blocks until `is` says true of a request, also of one that came before. False after `timeout`.
  [[nodiscard]] bool wait_for_request(const std::function<bool(const kube_request&)>& is,
                                      std::chrono::milliseconds timeout) const;
  /// Accepted so far.
  [[nodiscard]] std::size_t connections() const;
  [[nodiscard]] std::size_t open_connections() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::testing
