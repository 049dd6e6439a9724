// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <string>

#include "kubelet/api/dra_health_v1alpha1.grpc.pb.h"

namespace gpushm::dra {

/// v1alpha1.DRAResourceHealth: the health of all devices to each kubelet that listens, at once and
/// with each `tell`.
///
/// Shared objects: safe.
class health_service : public v1alpha1::DRAResourceHealth::CallbackService {
 public:
  /// `devices` places in the pool.
  health_service(std::string pool, unsigned devices);

  /// By device: what is wrong; devices that are not in it are healthy. As of now: call it more
  /// often than every 30 s, after which a kubelet takes health for unknown.
  void tell(const std::map<std::string, std::string>& troubles);
  /// Ends all streams, those to come too.
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
