// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kubernetes/device_plugin/resources/resource.hpp"
#include "kubernetes/kubelet_api/deviceplugin_v1beta1.grpc.pb.h"

namespace gpushm_testing {

/// A kubelet's connection to one instance of a device plugin, opened during its registration, and a
/// thread that reads its lists of devices.
/// Thread-safety: distinct objects: safe; shared objects: safe.
class plugin_client {
 public:
  struct callbacks {
    std::function<void(plugin_client&, std::vector<gpushm::device_plugin::device>)> listed;
    /// The stream has ended, for any reason. Always the last call.
    std::function<void(plugin_client&, const std::string& why)> ended;
  };

  plugin_client(std::string resource, std::string endpoint, const std::string& directory);
  plugin_client(const plugin_client&) = delete;
  plugin_client& operator=(const plugin_client&) = delete;
  /// Ends the stream and waits for its thread.
  ~plugin_client();

  [[nodiscard]] const std::string& resource() const { return resource_; }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

  /// Blocks at most `timeout` for the connection, and again for the reply.
  [[nodiscard]] grpc::Status connect(std::chrono::milliseconds timeout,
                                     v1beta1::DevicePluginOptions& options);
  /// Starts to read lists. The callbacks run on the client's thread.
  void run(callbacks callbacks);
  /// Ends the stream; `ended` is called afterwards. Does not block.
  void disconnect();

  [[nodiscard]] grpc::Status prefer(const v1beta1::PreferredAllocationRequest& request,
                                    v1beta1::PreferredAllocationResponse& response,
                                    std::chrono::milliseconds timeout);
  [[nodiscard]] grpc::Status allocate(const v1beta1::AllocateRequest& request,
                                      v1beta1::AllocateResponse& response,
                                      std::chrono::milliseconds timeout);

 private:
  void read(const callbacks& callbacks);

  std::string resource_;
  std::string endpoint_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub_;
  grpc::ClientContext stream_context_;
  std::thread reader_;
};

}  // namespace gpushm_testing
