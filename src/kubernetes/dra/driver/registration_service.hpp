// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kubernetes/kubelet_api/pluginregistration_v1.grpc.pb.h"

namespace gpushm::dra {

/// pluginregistration.Registration: describes the driver to the kubelet and receives the result.
///
/// Thread-safety: shared objects: safe.
class registration_service : public pluginregistration::Registration::CallbackService {
 public:
  /// An empty `error`: registered.
  using listener = std::function<void(const std::string& error)>;

  /// `on_result` runs on gRPC's threads and must not block.
  registration_service(std::string driver, std::string endpoint, listener on_result);

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                    const pluginregistration::InfoRequest* request,
                                    pluginregistration::PluginInfo* info) override;
  grpc::ServerUnaryReactor* NotifyRegistrationStatus(
      grpc::CallbackServerContext* context,
      const pluginregistration::RegistrationStatus* request,
      pluginregistration::RegistrationStatusResponse* response) override;

 private:
  const std::string driver_;
  const std::string endpoint_;
  const listener on_result_;
};

}  // namespace gpushm::dra
