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

#include "base/process/wakeup.hpp"

namespace gpushm::device_plugin {

/// An outgoing call in flight, to be polled for its result.
class pending_call {
 public:
  pending_call() = default;
  pending_call(const pending_call&) = delete;
  pending_call& operator=(const pending_call&) = delete;
  virtual ~pending_call() = default;
  /// Empty while the call is in flight.
  [[nodiscard]] virtual std::optional<grpc::Status> result() const = 0;
};

/// One unary call over a separate connection: with a shared one, gRPC would apply the retry delay
/// after a failure, up to two minutes, to the path even if another process serves it by then.
/// `Service` is the generated class. The destructor cancels the call and blocks until it has ended.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
template <typename Service, typename Request, typename Response>
class outgoing_call final : public pending_call {
 public:
  /// `begin(async stub, context, request, response, done)` calls the method. `wake` is signalled
  /// when there is a result, and must outlive the call.
  template <typename Begin>
  outgoing_call(const std::string& socket_path,
                Request request,
                std::chrono::milliseconds timeout,
                const base::wakeup& wake,
                Begin&& begin)
      : request_(std::move(request)), outcome_(std::make_shared<outcome>()) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = Service::NewStub(grpc::CreateCustomChannel(
        "unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments));
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    // The callback owns no gRPC object: the last channel of a process must not be destroyed on a
    // gRPC thread, which would then wait for itself (grpc/grpc#32584).
    begin(*stub_->async(),
          &context_,
          &request_,
          &response_,
          [outcome = outcome_, &wake](const grpc::Status& status) {
            const std::lock_guard lock(outcome->mutex);
            outcome->status = status;
            wake.signal();
            outcome->done.notify_all();
          });
  }
  outgoing_call(const outgoing_call&) = delete;
  outgoing_call& operator=(const outgoing_call&) = delete;
  ~outgoing_call() override {
    context_.TryCancel();
    std::unique_lock lock(outcome_->mutex);
    outcome_->done.wait(lock, [&] { return outcome_->status.has_value(); });
  }

  [[nodiscard]] std::optional<grpc::Status> result() const override {
    const std::lock_guard lock(outcome_->mutex);
    return outcome_->status;
  }

 private:
  struct outcome {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<grpc::Status> status;
  };

  grpc::ClientContext context_;
  Request request_;
  Response response_;
  std::unique_ptr<typename Service::Stub> stub_;
  std::shared_ptr<outcome> outcome_;
};

}  // namespace gpushm::device_plugin
