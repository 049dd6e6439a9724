// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/cluster.hpp"

namespace gpushm::dra {

namespace {

class watched_collection : public cluster::subscription {
 public:
  watched_collection(const api_client::client& through,
                     const std::string& path,
                     const std::string& field_selector,
                     const api_client::collection_watch::handler& handler)
      : watch_(through, path, field_selector, handler) {}
  [[nodiscard]] std::string failure() const override {
    return watch_.is_current() ? std::string() : watch_.last_failure();
  }

 private:
  api_client::collection_watch watch_;
};

class kube_cluster : public cluster {
 public:
  explicit kube_cluster(const api_client::client& through) : through_(through) {}

  nlohmann::json get(const std::string& path) override { return through_.get(path); }
  nlohmann::json create(const std::string& path, const nlohmann::json& object) override {
    return through_.create(path, object);
  }
  nlohmann::json replace(const std::string& path, const nlohmann::json& object) override {
    return through_.replace(path, object);
  }
  void remove(const std::string& path, const std::string& uid) override {
    through_.remove(path, uid);
  }
  std::vector<std::string> versions_of(const std::string& group) override {
    return through_.versions_of(group);
  }
  std::unique_ptr<subscription> subscribe(
      const std::string& path,
      const std::string& field_selector,
      const api_client::collection_watch::handler& handler) override {
    return std::make_unique<watched_collection>(through_, path, field_selector, handler);
  }

 private:
  const api_client::client& through_;
};

}  // namespace

std::unique_ptr<cluster> cluster_of(const api_client::client& through) {
  return std::make_unique<kube_cluster>(through);
}

}  // namespace gpushm::dra
