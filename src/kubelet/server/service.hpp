// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/operations.hpp"
#include "kubelet/api/deviceplugin_v1beta1.grpc.pb.h"
#include "kubelet/plugin/resources/resource.hpp"
#include "kubelet/server/list_stream.hpp"

namespace gpushm::kubelet {

/// The kubelet's DevicePlugin service (v1beta1) for one resource: puts the resource's words into
/// messages and its errors into statuses. A stream costs no thread.
///
/// Shared objects: safe.
class service final : public v1beta1::DevicePlugin::CallbackService, private list_stream::owner {
 public:
  struct stream_counts {
    std::uint64_t opened = 0;  ///< ListAndWatch calls so far
    std::size_t open = 0;      ///< of those, now
  };

  /// `observer` may be null, else it must outlive the service. `stream_ended` is called after each
  /// end of a ListAndWatch, from any thread; it must not block.
  service(std::shared_ptr<const plugin::resource> of,
          base::operation_observer* observer,
          std::function<void()> stream_ended);
  service(const service&) = delete;
  service& operator=(const service&) = delete;
  ~service() override = default;

  /// Answers for `with` from now on; `publish` after it.
  void replace(std::shared_ptr<const plugin::resource> with);
  /// The devices have changed: sends them to all streams. Does not wait for readers.
  void publish();
  /// Ends all streams, also those that are opened later. Does not wait for it.
  void end(ending how);
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
  [[nodiscard]] std::shared_ptr<const plugin::resource> current() const;
  template <typename Work>
  grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext& context,
                                   std::string_view operation,
                                   Work&& work);
  void fill(v1beta1::ListAndWatchResponse& list) override;
  void sent(const grpc::Status& how, std::chrono::nanoseconds took) noexcept override;
  void done(list_stream& which) noexcept override;

  base::operation_observer* observer_;
  std::function<void()> stream_ended_;
  mutable std::mutex resource_mutex_;
  std::shared_ptr<const plugin::resource> resource_;
  mutable std::mutex streams_mutex_;  ///< taken before a stream's own, never after
  std::set<list_stream*> streams_;
  std::uint64_t opened_ = 0;
  std::optional<ending> ended_;
};

}  // namespace gpushm::kubelet
