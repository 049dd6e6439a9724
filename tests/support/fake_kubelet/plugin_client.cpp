// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kubelet/plugin_client.hpp"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <utility>

namespace gpushm_testing {

namespace {

std::shared_ptr<grpc::Channel> channel_to(const std::string& path) {
  grpc::ChannelArguments arguments;
  // As in a kubelet, each client has a separate connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(
      std::string("unix:").append(path), grpc::InsecureChannelCredentials(), arguments);
}

std::chrono::system_clock::time_point in(std::chrono::milliseconds timeout) {
  return std::chrono::system_clock::now() + timeout;
}

}  // namespace

plugin_client::plugin_client(std::string resource,
                             std::string endpoint,
                             const std::string& directory)
    : resource_(std::move(resource)),
      endpoint_(std::move(endpoint)),
      channel_(channel_to(std::string(directory).append("/").append(endpoint_))),
      stub_(v1beta1::DevicePlugin::NewStub(channel_)) {}

plugin_client::~plugin_client() {
  disconnect();
  if (reader_.joinable()) {
    reader_.join();
  }
}

grpc::Status plugin_client::connect(std::chrono::milliseconds timeout,
                                    v1beta1::DevicePluginOptions& options) {
  if (!channel_->WaitForConnected(in(timeout))) {
    return {grpc::StatusCode::UNKNOWN, "failed to dial device plugin: context deadline exceeded"};
  }
  grpc::ClientContext context;
  context.set_deadline(in(timeout));
  return stub_->GetDevicePluginOptions(&context, {}, &options);
}

void plugin_client::run(callbacks callbacks) {
  reader_ = std::thread([this, callbacks = std::move(callbacks)] { read(callbacks); });
}

void plugin_client::disconnect() {
  stream_context_.TryCancel();
}

void plugin_client::read(const callbacks& callbacks) {
  const auto stream = stub_->ListAndWatch(&stream_context_, {});
  v1beta1::ListAndWatchResponse list;
  while (stream->Read(&list)) {
    std::vector<gpushm::device_plugin::device> devices;
    devices.reserve(static_cast<std::size_t>(list.devices_size()));
    for (const v1beta1::Device& each : list.devices()) {
      auto& created = devices.emplace_back();
      created.id = each.id();
      created.healthy = each.health() == "Healthy";
      if (each.topology().nodes_size() > 0) {
        created.numa_node = each.topology().nodes(0).id();
      }
    }
    callbacks.listed(*this, std::move(devices));
  }
  const grpc::Status status = stream->Finish();
  callbacks.ended(*this, status.ok() ? "end of stream" : status.error_message());
}

grpc::Status plugin_client::prefer(const v1beta1::PreferredAllocationRequest& request,
                                   v1beta1::PreferredAllocationResponse& response,
                                   std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(in(timeout));
  return stub_->GetPreferredAllocation(&context, request, &response);
}

grpc::Status plugin_client::allocate(const v1beta1::AllocateRequest& request,
                                     v1beta1::AllocateResponse& response,
                                     std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(in(timeout));
  return stub_->Allocate(&context, request, &response);
}

}  // namespace gpushm_testing
