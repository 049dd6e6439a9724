// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/cluster.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "gpushm/error.hpp"

namespace gpushm::dra {

namespace {

constexpr const char* group = "resource.k8s.io";
constexpr std::array<std::string_view, 3> supported{"v1", "v1beta2", "v1beta1"};

}  // namespace

std::string resource_api::newest_common() const {
  const std::vector<std::string> served = through_.versions_of(group);
  const auto* const common =
      std::find_if(supported.begin(), supported.end(), [&](std::string_view each) {
        return std::find(served.begin(), served.end(), each) != served.end();
      });
  return common == supported.end() ? std::string() : std::string(*common);
}

std::string resource_api::version() {
  const std::lock_guard lock(mutex_);
  if (version_.empty()) {
    std::string common = newest_common();
    if (common.empty()) {
      throw error(errc::unsupported_version,
                  "find API",
                  group,
                  "the API server serves none of v1, v1beta2 and v1beta1",
                  "use Kubernetes 1.32 or newer, with dynamic resource allocation enabled");
    }
    version_ = std::move(common);
  }
  return version_;
}

bool resource_api::is_served() {
  std::string common = newest_common();
  const std::lock_guard lock(mutex_);
  version_ = std::move(common);
  return !version_.empty();
}

void resource_api::invalidate() {
  const std::lock_guard lock(mutex_);
  version_.clear();
}

}  // namespace gpushm::dra
