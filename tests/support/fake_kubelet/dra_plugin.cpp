// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/dra_plugin.hpp"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <utility>

#include "kubernetes/kubelet_api/dra_health_v1.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_health_v1alpha1.grpc.pb.h"

namespace gpushm_testing {

dra_plugin::dra_plugin(std::string driver,
                       std::string endpoint,
                       std::string service,
                       std::string health_service,
                       std::chrono::milliseconds health_retry)
    : driver_(std::move(driver)),
      endpoint_(std::move(endpoint)),
      service_(std::move(service)),
      health_service_(std::move(health_service)),
      health_retry_(health_retry),
      channel_(grpc::CreateChannel("unix:" + endpoint_, grpc::InsecureChannelCredentials())) {
  if (health_retry_.count() > 0 && !health_service_.empty()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { watch_health(stop); });
  }
}

dra_plugin::~dra_plugin() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    if (reading_ != nullptr) {
      reading_->TryCancel();
    }
  }
  changed_.notify_all();
}

bool dra_plugin::is_connected() const {
  return channel_->GetState(true) == GRPC_CHANNEL_READY;
}

std::map<std::string, dra_health> dra_plugin::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

unsigned dra_plugin::health_attempts() const {
  const std::lock_guard lock(mutex_);
  return attempts_;
}

unsigned dra_plugin::health_messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}

void dra_plugin::watch_health(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    read_stream();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, health_retry_, [this] { return ending_; });
  }
}

void dra_plugin::read_stream() {
  if (health_service_ == "v1.DRAResourceHealth") {
    read_stream_of<::v1::DRAResourceHealth::Stub,
                   ::v1::NodeWatchResourcesRequest,
                   ::v1::NodeWatchResourcesResponse>(*::v1::DRAResourceHealth::NewStub(channel_));
  } else {
    read_stream_of<::v1alpha1::DRAResourceHealth::Stub,
                   ::v1alpha1::NodeWatchResourcesRequest,
                   ::v1alpha1::NodeWatchResourcesResponse>(
        *::v1alpha1::DRAResourceHealth::NewStub(channel_));
  }
}

template <typename Stub, typename Request, typename Response>
void dra_plugin::read_stream_of(Stub& stub) {
  grpc::ClientContext context;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) {
      return;
    }
    reading_ = &context;
    ++attempts_;
  }
  const auto stream = stub.NodeWatchResources(&context, Request());
  Response message;
  while (stream->Read(&message)) {
    const std::lock_guard lock(mutex_);
    ++messages_;
    health_.clear();
    for (const auto& each : message.devices()) {
      health_[each.device().pool_name() + "/" + each.device().device_name()] = {
          each.health(), each.last_updated_time(), each.message()};
    }
  }
  static_cast<void>(stream->Finish());
  const std::lock_guard lock(mutex_);
  reading_ = nullptr;
}

}  // namespace gpushm_testing
