// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/registration_service.hpp"

#include <utility>

namespace gpushm::dra {

registration_service::registration_service(std::string driver,
                                           std::string endpoint,
                                           listener on_result)
    : driver_(std::move(driver)),
      endpoint_(std::move(endpoint)),
      on_result_(std::move(on_result)) {}

grpc::ServerUnaryReactor* registration_service::GetInfo(
    grpc::CallbackServerContext* context,
    const pluginregistration::InfoRequest* /*request*/,
    pluginregistration::PluginInfo* info) {
  info->set_type("DRAPlugin");
  info->set_name(driver_);
  info->set_endpoint(endpoint_);
  // Every served gRPC service; a kubelet uses the newest that it supports.
  info->add_supported_versions("v1.DRAPlugin");
  info->add_supported_versions("v1beta1.DRAPlugin");
  info->add_supported_versions("v1.DRAResourceHealth");
  info->add_supported_versions("v1alpha1.DRAResourceHealth");
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* registration_service::NotifyRegistrationStatus(
    grpc::CallbackServerContext* context,
    const pluginregistration::RegistrationStatus* request,
    pluginregistration::RegistrationStatusResponse* /*response*/) {
  if (request->plugin_registered()) {
    on_result_({});
  } else {
    on_result_(request->error().empty() ? "the kubelet rejected the registration without a reason"
                                        : request->error());
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace gpushm::dra
