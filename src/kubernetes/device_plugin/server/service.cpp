// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/service.hpp"

#include <chrono>
#include <exception>
#include <utility>

#include "kubernetes/device_plugin/server/grpc_status.hpp"
#include "kubernetes/device_plugin/server/messages.hpp"

namespace gpushm::device_plugin {

namespace {
using clock = std::chrono::steady_clock;
constexpr std::string_view service_name = "device_plugin";
}  // namespace

service::service(std::shared_ptr<const device_plugin::resource> resource,
                 base::operation_observer* observer,
                 std::function<void()> stream_ended)
    : observer_(observer), stream_ended_(std::move(stream_ended)), resource_(std::move(resource)) {}

std::shared_ptr<const device_plugin::resource> service::current() const {
  const std::lock_guard lock(resource_mutex_);
  return resource_;
}

void service::replace(std::shared_ptr<const device_plugin::resource> resource) {
  const std::lock_guard lock(resource_mutex_);
  resource_.swap(resource);
}

void service::publish() {
  const std::lock_guard lock(streams_mutex_);
  for (list_stream* const each : streams_) {
    each->update();
  }
}

void service::end(ending ending) {
  const std::lock_guard lock(streams_mutex_);
  ended_ = ending;
  for (list_stream* const each : streams_) {
    each->end(ending);
  }
}

service::stream_counts service::streams() const {
  const std::lock_guard lock(streams_mutex_);
  return {opened_, streams_.size()};
}

template <typename Work>
grpc::ServerUnaryReactor* service::respond(grpc::CallbackServerContext& context,
                                           std::string_view operation,
                                           Work&& work) {
  const auto started = clock::now();
  failed_call result{grpc::Status::OK, "ok"};
  try {
    work();
  } catch (...) {
    result = failed_call_of(std::current_exception());
  }
  if (observer_ != nullptr) {
    observer_->finished(service_name, operation, result.outcome, clock::now() - started);
  }
  auto* const reactor = context.DefaultReactor();
  reactor->Finish(result.status);
  return reactor;
}

grpc::ServerUnaryReactor* service::GetDevicePluginOptions(grpc::CallbackServerContext* context,
                                                          const v1beta1::Empty* /*request*/,
                                                          v1beta1::DevicePluginOptions* response) {
  return respond(*context, "GetDevicePluginOptions", [&] {
    response->set_get_preferred_allocation_available(current()->has_preferences());
  });
}

grpc::ServerWriteReactor<v1beta1::ListAndWatchResponse>* service::ListAndWatch(
    grpc::CallbackServerContext* /*context*/, const v1beta1::Empty* /*request*/) {
  list_stream::owner& self = *this;
  auto stream = std::make_unique<list_stream>(self);
  const std::lock_guard lock(streams_mutex_);
  streams_.insert(stream.get());
  ++opened_;
  if (ended_) {
    stream->end(*ended_);
  } else {
    stream->update();
  }
  return stream.release();
}

grpc::ServerUnaryReactor* service::GetPreferredAllocation(
    grpc::CallbackServerContext* context,
    const v1beta1::PreferredAllocationRequest* request,
    v1beta1::PreferredAllocationResponse* response) {
  return respond(*context, "GetPreferredAllocation", [&] {
    prefer_for_each(*current(), *request, *response);
  });
}

grpc::ServerUnaryReactor* service::Allocate(grpc::CallbackServerContext* context,
                                            const v1beta1::AllocateRequest* request,
                                            v1beta1::AllocateResponse* response) {
  return respond(*context, "Allocate", [&] {
    write_allocations(current()->allocate(read_containers(*request)), *response);
  });
}

grpc::ServerUnaryReactor* service::PreStartContainer(
    grpc::CallbackServerContext* context,
    const v1beta1::PreStartContainerRequest* /*request*/,
    v1beta1::PreStartContainerResponse* /*response*/) {
  // Kubelets do not call this, because the options do not request it.
  return respond(*context, "PreStartContainer", [] {});
}

void service::fill(v1beta1::ListAndWatchResponse& list) {
  write_devices(current()->devices(), list);
}

void service::sent(const grpc::Status& status, std::chrono::nanoseconds took) noexcept {
  if (observer_ != nullptr) {
    observer_->finished(
        service_name, "ListAndWatch", status.ok() ? "ok" : to_string(errc::peer_unreachable), took);
  }
}

void service::done(list_stream& stream) noexcept {
  {
    const std::lock_guard lock(streams_mutex_);
    streams_.erase(&stream);
  }
  stream_ended_();
}

}  // namespace gpushm::device_plugin
