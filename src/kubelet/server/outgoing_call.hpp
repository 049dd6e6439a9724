// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/wakeup.hpp"

namespace gpushm::kubelet {

/// A call of ours that is under way: to be asked for its result now and then.
class pending_call {
 public:
  pending_call() = default;
  pending_call(const pending_call&) = delete;
  pending_call& operator=(const pending_call&) = delete;
  virtual ~pending_call() = default;
  /// Nothing as long as it runs.
  [[nodiscard]] virtual std::optional<grpc::Status> result() const = 0;
};

/// One unary call over a connection of its own: gRPC would let connections to the same path share
/// the waiting time after a failure, which is up to two minutes, whoever serves there by now.
/// `Service` is the generated class. Cancelled, and waited for, by the destructor.
///
/// Distinct objects: safe. Shared objects: unsafe.
template <typename Service, typename Request, typename Response>
class outgoing_call final : public pending_call {
 public:
  /// `begin(async stub, context, request, response, done)` calls the method. `wake` is signalled
  /// when there is a result, and must outlive the call.
  template <typename Begin>
  outgoing_call(const std::string& socket_path,
                Request request,
                std::chrono::milliseconds patience,
                const base::wakeup& wake,
                Begin&& begin)
      : state_(std::make_shared<state>()) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    state_->request = std::move(request);
    state_->stub = Service::NewStub(grpc::CreateCustomChannel(
        std::string("unix:").append(socket_path), grpc::InsecureChannelCredentials(), arguments));
    state_->context.set_deadline(std::chrono::system_clock::now() + patience);
    begin(*state_->stub->async(),
          &state_->context,
          &state_->request,
          &state_->response,
          [state = state_, &wake](const grpc::Status& status) {
            const std::lock_guard lock(state->mutex);
            state->status = status;
            wake.signal();
            state->done.notify_all();
          });
  }
  outgoing_call(const outgoing_call&) = delete;
  outgoing_call& operator=(const outgoing_call&) = delete;
  ~outgoing_call() override {
    state_->context.TryCancel();
    std::unique_lock lock(state_->mutex);
    state_->done.wait(lock, [&] { return state_->status.has_value(); });
  }

  [[nodiscard]] std::optional<grpc::Status> result() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->status;
  }

 private:
  struct state {
    grpc::ClientContext context;
    Request request;
    Response response;
    std::unique_ptr<typename Service::Stub> stub;
    std::mutex mutex;
    std::condition_variable done;
    std::optional<grpc::Status> status;
  };
  std::shared_ptr<state> state_;
};

}  // namespace gpushm::kubelet
