// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/node_service.hpp"

#include <algorithm>
#include <exception>
#include <string>

#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/observed.hpp"
#include "kubernetes/kubelet_api/dra_v1.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_v1beta1.grpc.pb.h"

namespace gpushm::dra {

namespace v1 = k8s::io::kubelet::pkg::apis::dra::v1;
namespace v1beta1 = k8s::io::kubelet::pkg::apis::dra::v1beta1;

namespace {

void set_share_id(v1::Device& device, const std::optional<std::string>& share_id) {
  if (share_id) {
    device.set_share_id(*share_id);
  }
}
void set_share_id(v1beta1::Device& /*device*/, const std::optional<std::string>& /*share_id*/) {
  // A kubelet that uses this version does not support shares.
}

template <typename Claim>
claim_reference reference_of(const Claim& claim) {
  return {claim.namespace_(), claim.name(), claim.uid()};
}

/// Handles one claim of a call: errors are reported per claim, never for the call.
template <typename Work, typename Response>
void handle_claim(base::operation_observer* observer,
                  const char* name,
                  Response& claim_response,
                  const Work& work) {
  observed operation(observer, name);
  try {
    work();
    return;
  } catch (const error& failure) {
    operation.failed(failure);
    claim_response.set_error(failure.what());
  } catch (const std::exception& failure) {
    operation.failed(error(errc::system_error, name, "", failure.what()));
    claim_response.set_error(failure.what());
  }
  base::log(log_level::warning, claim_response.error());
}

template <typename Service,
          typename PrepareRequest,
          typename PrepareResponse,
          typename UnprepareRequest,
          typename UnprepareResponse>
class node_service : public Service {
 public:
  node_service(claims& prepared,
               work_queue& through_api,
               work_queue& local,
               base::operation_observer* observer)
      : claims_(prepared), through_api_(through_api), local_(local), observer_(observer) {}

  grpc::ServerUnaryReactor* NodePrepareResources(grpc::CallbackServerContext* context,
                                                 const PrepareRequest* request,
                                                 PrepareResponse* response) override {
    const bool prepared =
        std::all_of(request->claims().begin(), request->claims().end(), [this](const auto& claim) {
          return claims_.is_prepared(reference_of(claim));
        });
    return run(prepared ? local_ : through_api_, context, [this, context, request, response] {
      for (const auto& claim : request->claims()) {
        if (context->IsCancelled()) {
          return;
        }
        auto& claim_response = (*response->mutable_claims())[claim.uid()];
        handle_claim(observer_, "NodePrepareResources", claim_response, [&] {
          for (const prepared_device& each : claims_.prepare(reference_of(claim)).devices) {
            auto& device = *claim_response.add_devices();
            device.mutable_request_names()->Assign(each.requests.begin(), each.requests.end());
            device.set_pool_name(each.pool);
            device.set_device_name(each.device);
            device.mutable_cdi_device_ids()->Assign(each.cdi_devices.begin(),
                                                    each.cdi_devices.end());
            set_share_id(device, each.share_id);
          }
        });
      }
    });
  }

  grpc::ServerUnaryReactor* NodeUnprepareResources(grpc::CallbackServerContext* context,
                                                   const UnprepareRequest* request,
                                                   UnprepareResponse* response) override {
    return run(local_, context, [this, request, response] {
      for (const auto& claim : request->claims()) {
        auto& claim_response = (*response->mutable_claims())[claim.uid()];
        handle_claim(observer_, "NodeUnprepareResources", claim_response, [&] {
          claims_.unprepare(reference_of(claim));
        });
      }
    });
  }

 private:
  template <typename Work>
  static grpc::ServerUnaryReactor* run(work_queue& queue,
                                       grpc::CallbackServerContext* context,
                                       Work work) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    queue.run([context, reactor, work = std::move(work)] {
      // The kubelet has given up after its timeout, and calls again.
      if (context->IsCancelled()) {
        reactor->Finish(
            grpc::Status(grpc::StatusCode::CANCELLED, "the kubelet cancelled the call"));
        return;
      }
      work();
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  claims& claims_;
  work_queue& through_api_;
  work_queue& local_;
  base::operation_observer* const observer_;
};

}  // namespace

node_services::node_services(claims& prepared,
                             work_queue& through_api,
                             work_queue& local,
                             base::operation_observer* observer) {
  services_.push_back(std::make_unique<node_service<v1::DRAPlugin::CallbackService,
                                                    v1::NodePrepareResourcesRequest,
                                                    v1::NodePrepareResourcesResponse,
                                                    v1::NodeUnprepareResourcesRequest,
                                                    v1::NodeUnprepareResourcesResponse>>(
      prepared, through_api, local, observer));
  services_.push_back(std::make_unique<node_service<v1beta1::DRAPlugin::CallbackService,
                                                    v1beta1::NodePrepareResourcesRequest,
                                                    v1beta1::NodePrepareResourcesResponse,
                                                    v1beta1::NodeUnprepareResourcesRequest,
                                                    v1beta1::NodeUnprepareResourcesResponse>>(
      prepared, through_api, local, observer));
}

node_services::~node_services() = default;

std::vector<grpc::Service*> node_services::all() const {
  std::vector<grpc::Service*> result;
  result.reserve(services_.size());
  for (const auto& each : services_) {
    result.push_back(each.get());
  }
  return result;
}

}  // namespace gpushm::dra
