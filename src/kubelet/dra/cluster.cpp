// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/cluster.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* group = "resource.k8s.io";
constexpr std::array<std::string_view, 3> known{"v1", "v1beta2", "v1beta1"};

class watched_collection : public cluster::subscription {
 public:
  watched_collection(const kube::client& through,
                     const std::string& path,
                     const std::string& field_selector,
                     const kube::collection_watch::handler& handler)
      : watch_(through, path, field_selector, handler) {}
  [[nodiscard]] std::string failure() const override {
    return watch_.is_current() ? std::string() : watch_.last_failure();
  }

 private:
  kube::collection_watch watch_;
};

class kube_cluster : public cluster {
 public:
  explicit kube_cluster(const kube::client& through) : through_(through) {}

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
  std::vector<std::string> versions_of(const std::string& of) override {
    return through_.versions_of(of);
  }
  std::unique_ptr<subscription> subscribe(const std::string& path,
                                          const std::string& field_selector,
                                          const kube::collection_watch::handler& handler) override {
    return std::make_unique<watched_collection>(through_, path, field_selector, handler);
  }

 private:
  const kube::client& through_;
};

}  // namespace

std::unique_ptr<cluster> cluster_of(const kube::client& through) {
  return std::make_unique<kube_cluster>(through);
}

std::string resource_api::version() {
  const std::lock_guard lock(mutex_);
  if (version_.empty()) {
    const std::vector<std::string> served = through_.versions_of(group);
    const auto common = std::find_if(known.begin(), known.end(), [&](std::string_view each) {
      return std::find(served.begin(), served.end(), each) != served.end();
    });
    if (common == known.end()) {
      throw error(errc::unsupported_version,
                  "find API",
                  group,
                  "the API server serves none of v1, v1beta2 and v1beta1",
                  "use Kubernetes 1.32 or newer, with dynamic resource allocation enabled");
    }
    version_ = *common;
  }
  return version_;
}

void resource_api::forget() {
  const std::lock_guard lock(mutex_);
  version_.clear();
}

}  // namespace gpushm::dra
