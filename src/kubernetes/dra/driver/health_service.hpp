// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}

namespace gpushm::dra {

/// The services v1.DRAResourceHealth and v1alpha1.DRAResourceHealth, which share one
/// implementation: each sends the health of all devices to each subscribed kubelet, immediately and
/// with each `report`. Kubelets up to 1.36 use v1alpha1, later ones v1.
///
/// Thread-safety: shared objects: safe.
class health_services {
 public:
  /// `devices` is the number of devices in the pool.
  health_services(std::string pool, unsigned devices);
  health_services(const health_services&) = delete;
  health_services& operator=(const health_services&) = delete;
  ~health_services();

  /// Sets the problems by device; all other devices are healthy. Must be called more often than
  /// every 30 s: after that, a kubelet considers the health unknown.
  void report(const std::map<std::string, std::string>& problems);
  /// Ends all streams, also future ones.
  void end();

  [[nodiscard]] std::vector<grpc::Service*> all() const;

 private:
  class version;
  template <typename Api>
  class version_of;

  std::vector<std::unique_ptr<version>> versions_;
};

}  // namespace gpushm::dra
