// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/registration_service.hpp"

#include <utility>

namespace gpushm::dra {

registration_service::registration_service(std::string driver, std::string endpoint, listener heard)
    : driver_(std::move(driver)), endpoint_(std::move(endpoint)), heard_(std::move(heard)) {}

grpc::ServerUnaryReactor* registration_service::GetInfo(
    grpc::CallbackServerContext* context,
    const pluginregistration::InfoRequest* /*request*/,
    pluginregistration::PluginInfo* answer) {
  answer->set_type("DRAPlugin");
  answer->set_name(driver_);
  answer->set_endpoint(endpoint_);
  // Every served gRPC service; a kubelet uses the newest that it supports.
  answer->add_supported_versions("v1.DRAPlugin");
  answer->add_supported_versions("v1beta1.DRAPlugin");
  answer->add_supported_versions("v1alpha1.DRAResourceHealth");
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* registration_service::NotifyRegistrationStatus(
    grpc::CallbackServerContext* context,
    const pluginregistration::RegistrationStatus* request,
    pluginregistration::RegistrationStatusResponse* /*answer*/) {
  if (request->plugin_registered()) {
    heard_({});
  } else {
    heard_(request->error().empty() ? "the kubelet rejected the registration without a reason"
                                    : request->error());
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace gpushm::dra
