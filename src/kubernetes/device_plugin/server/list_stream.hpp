// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "kubernetes/kubelet_api/deviceplugin_v1beta1.pb.h"

namespace gpushm::device_plugin {

/// How a service ends its streams.
enum class ending : std::uint8_t {
  immediately,
  /// After a last list without devices.
  after_empty_list,
};

/// One ListAndWatch: sends the list immediately and after each change. Changes while a list is in
/// flight are coalesced, so a slow reader gets fewer lists, never stale ones. Deletes itself in
/// gRPC's last callback.
///
/// Thread-safety: shared objects: safe.
class list_stream final : public grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse> {
 public:
  /// Provides the list. Called from any thread; `fill` and `sent` with the stream's lock held.
  class owner {
   public:
    owner() = default;
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;
    virtual ~owner() = default;
    /// Fills in the current list. May throw: the stream then ends with that error.
    virtual void fill(v1beta1::ListAndWatchResponse& list) = 0;
    virtual void sent(const grpc::Status& status, std::chrono::nanoseconds took) noexcept = 0;
    /// The stream is about to delete itself.
    virtual void done(list_stream& stream) noexcept = 0;
  };

  /// `owner` must outlive the server.
  explicit list_stream(owner& owner) : owner_(owner) {}

  /// Schedules sending the current list. Does not block.
  void update();
  /// Schedules the end of the stream. Does not block.
  void end(ending ending);

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void advance();
  void finish(const grpc::Status& status);

  owner& owner_;
  std::mutex mutex_;
  std::unique_ptr<v1beta1::ListAndWatchResponse> list_;  ///< while in flight
  std::chrono::steady_clock::time_point started_;
  bool outdated_ = false;
  bool ended_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  ending how_ = ending::immediately;
};

}  // namespace gpushm::device_plugin
