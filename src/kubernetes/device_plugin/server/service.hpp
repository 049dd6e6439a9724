// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/report/operations.hpp"
#include "kubernetes/device_plugin/resources/resource.hpp"
#include "kubernetes/device_plugin/server/list_stream.hpp"
#include "kubernetes/kubelet_api/deviceplugin_v1beta1.grpc.pb.h"

namespace gpushm::device_plugin {

/// The kubelet's DevicePlugin service (v1beta1) for one resource: converts the resource's results
/// to messages and its errors to statuses. A stream does not use a thread.
///
/// Thread-safety: shared objects: safe.
class service final : public v1beta1::DevicePlugin::CallbackService, private list_stream::owner {
 public:
  struct stream_counts {
    std::uint64_t opened = 0;  ///< ListAndWatch calls so far
    std::size_t open = 0;      ///< currently open ones
  };

  /// `observer` may be null, else it must outlive the service. `stream_ended` is called after each
  /// end of a ListAndWatch, from any thread; it must not block.
  service(std::shared_ptr<const device_plugin::resource> resource,
          base::operation_observer* observer,
          std::function<void()> stream_ended);
  service(const service&) = delete;
  service& operator=(const service&) = delete;
  ~service() override = default;

  /// Serves `resource` from now on; call `publish` afterwards.
  void replace(std::shared_ptr<const device_plugin::resource> resource);
  /// Sends the changed devices to all streams. Does not block.
  void publish();
  /// Ends all streams, also those opened later. Does not block.
  void end(ending ending);
  [[nodiscard]] stream_counts streams() const;

  grpc::ServerUnaryReactor* GetDevicePluginOptions(grpc::CallbackServerContext* context,
                                                   const v1beta1::Empty* request,
                                                   v1beta1::DevicePluginOptions* response) override;
  grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse>* ListAndWatch(
      grpc::CallbackServerContext* context, const v1beta1::Empty* request) override;
  grpc::ServerUnaryReactor* GetPreferredAllocation(
      grpc::CallbackServerContext* context,
      const v1beta1::PreferredAllocationRequest* request,
      v1beta1::PreferredAllocationResponse* response) override;
  grpc::ServerUnaryReactor* Allocate(grpc::CallbackServerContext* context,
                                     const v1beta1::AllocateRequest* request,
                                     v1beta1::AllocateResponse* response) override;
  grpc::ServerUnaryReactor* PreStartContainer(
      grpc::CallbackServerContext* context,
      const v1beta1::PreStartContainerRequest* request,
      v1beta1::PreStartContainerResponse* response) override;

 private:
  [[nodiscard]] std::shared_ptr<const device_plugin::resource> current() const;
  template <typename Work>
  grpc::ServerUnaryReactor* respond(grpc::CallbackServerContext& context,
                                    std::string_view operation,
                                    Work&& work);
  void fill(v1beta1::ListAndWatchResponse& list) override;
  void sent(const grpc::Status& status, std::chrono::nanoseconds took) noexcept override;
  void done(list_stream& stream) noexcept override;

  base::operation_observer* observer_;
  std::function<void()> stream_ended_;
  mutable std::mutex resource_mutex_;
  std::shared_ptr<const device_plugin::resource> resource_;
  mutable std::mutex streams_mutex_;  ///< locked before a stream's mutex, never after
  std::set<list_stream*> streams_;
  std::uint64_t opened_ = 0;
  std::optional<ending> ended_;
};

}  // namespace gpushm::device_plugin
