// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kubernetes/api_client/client.hpp"

namespace gpushm::dra {

/// The driver's interface to the API server, implemented with `api_client::client` or by a test.
/// Blocks and throws as `api_client::client` does.
///
/// Thread-safety: shared objects: safe.
class cluster {
 public:
  class subscription {
   public:
    subscription() = default;
    subscription(const subscription&) = delete;
    subscription& operator=(const subscription&) = delete;
    /// No handler runs once this returns.
    virtual ~subscription() = default;
    /// Empty if there was no failure.
    [[nodiscard]] virtual std::string failure() const = 0;
  };

  cluster() = default;
  cluster(const cluster&) = delete;
  cluster& operator=(const cluster&) = delete;
  virtual ~cluster() = default;

  virtual nlohmann::json get(const std::string& path) = 0;
  virtual nlohmann::json create(const std::string& path, const nlohmann::json& object) = 0;
  virtual nlohmann::json replace(const std::string& path, const nlohmann::json& object) = 0;
  virtual void remove(const std::string& path, const std::string& uid) = 0;
  virtual std::vector<std::string> versions_of(const std::string& group) = 0;
  virtual std::unique_ptr<subscription> subscribe(
      const std::string& path,
      const std::string& field_selector,
      const api_client::collection_watch::handler& handler) = 0;
};

/// `through` must outlive it.
[[nodiscard]] std::unique_ptr<cluster> cluster_of(const api_client::client& through);

/// The version of resource.k8s.io to use: the newest that both the server and this driver support
/// (v1, v1beta2, v1beta1). Queried once and cached.
///
/// Thread-safety: shared objects: safe.
class resource_api {
 public:
  explicit resource_api(cluster& through) : through_(through) {}

  /// Throws `error`: unsupported_version when no version is common.
  [[nodiscard]] std::string version();
  /// Queries again on the next use: the cluster may have been upgraded.
  void invalidate();
  /// Queries now: whether a version is common. A cluster without DRA serves none.
  [[nodiscard]] bool is_served();
  /// "/apis/resource.k8s.io/v1" + `suffix`.
  [[nodiscard]] std::string path(const std::string& suffix) {
    return "/apis/resource.k8s.io/" + version() + suffix;
  }

 private:
  /// Empty if none is common.
  [[nodiscard]] std::string newest_common() const;

  cluster& through_;
  std::mutex mutex_;
  std::string version_;
};

}  // namespace gpushm::dra
