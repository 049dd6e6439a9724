// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "kubelet/api/deviceplugin_v1beta1.pb.h"

namespace gpushm::kubelet {

/// What a service is asked to end its streams with.
enum class ending : std::uint8_t {
  at_once,
  /// A last list, without devices, goes before.
  after_empty_list,
};

/// One ListAndWatch: sends the list at once and after each change. Changes while a list is on its
/// way are sent together, as what holds then, so a slow reader gets fewer lists, never old ones.
/// Deletes itself once gRPC is done with it.
///
/// Shared objects: safe.
class list_stream final : public grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse> {
 public:
  /// Whose list it is. Called from any thread; `fill` and `sent` with the stream's lock held.
  class owner {
   public:
    owner() = default;
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;
    virtual ~owner() = default;
    /// The list as of now. May throw: the stream then ends with that.
    virtual void fill(v1beta1::ListAndWatchResponse& list) = 0;
    virtual void sent(const grpc::Status& how, std::chrono::nanoseconds took) noexcept = 0;
    /// The stream is about to delete itself.
    virtual void done(list_stream& which) noexcept = 0;
  };

  /// `of` must outlive the server.
  explicit list_stream(owner& of) : owner_(of) {}

  /// Sends the list as of now, soon. Does not block.
  void update();
  /// Ends the stream, soon. Does not block.
  void end(ending how);

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void advance();
  void finish(const grpc::Status& status);

  owner& owner_;
  std::mutex mutex_;
  std::unique_ptr<v1beta1::ListAndWatchResponse> list_;  ///< while it is on its way
  std::chrono::steady_clock::time_point started_;
  bool outdated_ = false;
  bool ended_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  ending how_ = ending::at_once;
};

}  // namespace gpushm::kubelet
