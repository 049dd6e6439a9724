// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/dra_calls.hpp"

#include <grpcpp/client_context.h>

#include "kubernetes/kubelet_api/dra_v1.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_v1beta1.grpc.pb.h"

namespace gpushm_testing {

namespace {

namespace v1 = k8s::io::kubelet::pkg::apis::dra::v1;
namespace v1beta1 = k8s::io::kubelet::pkg::apis::dra::v1beta1;

std::optional<std::string> share_of(const v1::Device& device) {
  return device.has_share_id() ? std::optional(device.share_id()) : std::nullopt;
}
std::optional<std::string> share_of(const v1beta1::Device& /*device*/) {
  return std::nullopt;
}

template <typename Each>
void read_devices(const Each& from, dra_response& answer) {
  if constexpr (requires { from.devices(); }) {
    for (const auto& each : from.devices()) {
      answer.devices.push_back({{each.request_names().begin(), each.request_names().end()},
                                each.pool_name(),
                                each.device_name(),
                                {each.cdi_device_ids().begin(), each.cdi_device_ids().end()},
                                share_of(each)});
    }
  }
}

template <typename Request, typename Response, typename Call>
dra_responses call_plugin(const std::vector<dra_claim>& claims,
                          std::chrono::milliseconds timeout,
                          const Call& call) {
  Request request;
  for (const dra_claim& each : claims) {
    auto& claim = *request.add_claims();
    claim.set_namespace_(each.name_space);
    claim.set_name(each.name);
    claim.set_uid(each.uid);
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  Response response;
  const grpc::Status status = call(&context, request, &response);
  dra_responses answers;
  for (const dra_claim& each : claims) {
    dra_response& answer = answers[each.uid];
    const auto claim = response.claims().find(each.uid);
    if (!status.ok()) {
      answer.error = "call failed: " + status.error_message();
    } else if (claim == response.claims().end()) {
      answer.error = "the driver's response lacks this claim";
    } else {
      answer.error = claim->second.error();
      read_devices(claim->second, answer);
    }
  }
  return answers;
}

}  // namespace

dra_responses call_prepare(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& service,
                           const std::vector<dra_claim>& claims,
                           std::chrono::milliseconds timeout) {
  if (service == "v1.DRAPlugin") {
    const auto stub = v1::DRAPlugin::NewStub(channel);
    return call_plugin<v1::NodePrepareResourcesRequest, v1::NodePrepareResourcesResponse>(
        claims, timeout, [&](auto... arguments) {
          return stub->NodePrepareResources(arguments...);
        });
  }
  const auto stub = v1beta1::DRAPlugin::NewStub(channel);
  return call_plugin<v1beta1::NodePrepareResourcesRequest, v1beta1::NodePrepareResourcesResponse>(
      claims, timeout, [&](auto... arguments) { return stub->NodePrepareResources(arguments...); });
}

dra_responses call_unprepare(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& service,
                             const std::vector<dra_claim>& claims,
                             std::chrono::milliseconds timeout) {
  if (service == "v1.DRAPlugin") {
    const auto stub = v1::DRAPlugin::NewStub(channel);
    return call_plugin<v1::NodeUnprepareResourcesRequest, v1::NodeUnprepareResourcesResponse>(
        claims, timeout, [&](auto... arguments) {
          return stub->NodeUnprepareResources(arguments...);
        });
  }
  const auto stub = v1beta1::DRAPlugin::NewStub(channel);
  return call_plugin<v1beta1::NodeUnprepareResourcesRequest,
                     v1beta1::NodeUnprepareResourcesResponse>(
      claims, timeout, [&](auto... arguments) {
        return stub->NodeUnprepareResources(arguments...);
      });
}

}  // namespace gpushm_testing
