// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <string>

#include "kubelet/api/dra_health_v1alpha1.grpc.pb.h"

namespace gpushm::dra {

/// v1alpha1.DRAResourceHealth: sends the health of all devices to each subscribed kubelet,
/// immediately and with each `report`.
///
/// Thread-safety: shared objects: safe.
class health_service : public v1alpha1::DRAResourceHealth::CallbackService {
 public:
  /// `devices` is the number of devices in the pool.
  health_service(std::string pool, unsigned devices);

  /// Sets the problems by device; all other devices are healthy. Must be called more often than
  /// every 30 s: after that, a kubelet considers the health unknown.
  void report(const std::map<std::string, std::string>& problems);
  /// Ends all streams, also future ones.
  void end();

  grpc::ServerWriteReactor<v1alpha1::NodeWatchResourcesResponse>* NodeWatchResources(
      grpc::CallbackServerContext* context,
      const v1alpha1::NodeWatchResourcesRequest* request) override;

 private:
  class stream;

  void left(stream* which);

  const std::string pool_;
  const unsigned devices_;
  std::mutex mutex_;
  bool ended_ = false;
  v1alpha1::NodeWatchResourcesResponse now_;
  std::list<stream*> streams_;
};

}  // namespace gpushm::dra
