// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpushm/broker.hpp"
#include "kubernetes/dra/claims/claim.hpp"
#include "kubernetes/dra/claims/cluster.hpp"
#include "kubernetes/dra/claims/domains.hpp"

namespace gpushm_testing {

using gpushm::dra::claim_reference;
using json = nlohmann::json;

/// An API server's objects in memory: implements `dra::cluster`, with failures on demand. Events
/// are delivered on the thread that makes the change. List items have no apiVersion and kind, as on
/// a real server. Field selectors are ignored, because a client must not rely on the server's
/// filter for what it deletes. Thread-safety: shared objects: safe.
class memory_cluster : public gpushm::dra::cluster {
 public:
  explicit memory_cluster(std::vector<std::string> versions = {"v1", "v1beta2", "v1beta1"});

  json get(const std::string& path) override;
  json create(const std::string& path, const json& object) override;
  json replace(const std::string& path, const json& object) override;
  void remove(const std::string& path, const std::string& uid) override;
  std::vector<std::string> versions_of(const std::string& group) override;
  std::unique_ptr<subscription> subscribe(
      const std::string& path,
      const std::string& field_selector,
      const gpushm::api_client::collection_watch::handler& handler) override;

  // Changes by other clients; never fail.
  json put(const std::string& path, json object);
  void erase(const std::string& path);
  [[nodiscard]] std::optional<json> find(const std::string& path) const;
  [[nodiscard]] std::vector<std::string> paths(const std::string& prefix) const;
  void set_versions(std::vector<std::string> versions);

  /// Until `answer_gets`, no `get` of a claim returns.
  void hold_gets();
  void answer_gets();
  /// The number of those that wait for `answer_gets`.
  [[nodiscard]] unsigned held_gets() const;

  /// While true, every request fails with `peer_unreachable`.
  std::atomic<bool> unreachable{false};
  /// Not 0: requests fail with this status.
  std::atomic<int> error_status{0};
  /// Number of next creations for which another client creates the object just before.
  std::atomic<int> races{0};
  /// Not 0: deletions fail with this status.
  std::atomic<int> deletion_error_status{0};
  /// Modifies written objects, like a mutating webhook or a server that drops fields. Must be set
  /// before the cluster is used.
  std::function<void(json&)> mutate;
  std::atomic<unsigned> gets{0};
  std::atomic<unsigned> node_gets{0};
  std::atomic<unsigned> writes{0};
  std::atomic<unsigned> discoveries{0};  ///< calls of `versions_of`

 private:
  class watching;

  void fail_if_configured(const std::string& operation, const std::string& path) const;
  void notify(const std::string& type, const std::string& path, const json& object);
  json stored(const std::string& path, json object);

  mutable std::mutex held_mutex_;
  std::condition_variable answered_;
  bool holding_ = false;
  unsigned held_ = 0;

  mutable std::mutex mutex_;
  std::vector<std::string> versions_;
  std::map<std::string, json> objects_;
  std::uint64_t last_version_ = 0;
  std::mutex notify_mutex_;
  std::list<watching*> watches_;
};

/// Domains that are only directories, with failures on demand. Thread-safety: shared objects: safe.
class directory_domains : public gpushm::dra::domains {
 public:
  explicit directory_domains(std::string root) : root_(std::move(root)) {}
  std::string open(const std::string& domain) override;
  void close(const std::string& domain) override;
  [[nodiscard]] std::vector<std::string> list() const override;

  std::atomic<bool> open_fails{false};
  std::atomic<bool> close_fails{false};
  std::atomic<bool> broker_is_away{false};  ///< for `close`
  std::atomic<unsigned> opened{0};

 private:
  std::string root_;
};

/// Domains with one broker each, as in the agent. Thread-safety: shared objects: safe.
class broker_domains : public gpushm::dra::domains {
 public:
  explicit broker_domains(std::string root) : root_(std::move(root)) {}
  std::string open(const std::string& domain) override;
  void close(const std::string& domain) override;
  [[nodiscard]] std::vector<std::string> list() const override;

 private:
  std::string root_;
  mutable std::mutex mutex_;
  std::map<std::string, gpushm::broker> open_;
};

inline constexpr const char* test_node = "node-a";
inline constexpr const char* test_driver = "gpushm.dev";

/// "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/NAME".
[[nodiscard]] std::string claim_path(const claim_reference& claim,
                                     const std::string& version = "v1");
[[nodiscard]] std::string slices_path(const std::string& version = "v1");
/// A UID in the usual format.
[[nodiscard]] std::string uid_of(unsigned number);
/// "default/claim-NUMBER".
[[nodiscard]] claim_reference claim_number(unsigned number);

struct test_result {
  std::string request = "share";
  std::string driver = test_driver;
  std::string pool = test_node;
  std::string device = "share-0";
  std::string share_id = {};
};
/// An allocated claim that is reserved for a pod.
[[nodiscard]] json claim_object(const claim_reference& claim,
                                const std::vector<test_result>& results = {test_result{}});

/// Names in a directory, sorted; empty if it does not exist.
[[nodiscard]] std::vector<std::string> names_in(const std::string& directory);
[[nodiscard]] std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);

}  // namespace gpushm_testing
