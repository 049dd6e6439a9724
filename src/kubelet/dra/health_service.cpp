// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/health_service.hpp"

#include <ctime>
#include <utility>

#include "kubelet/dra/slice.hpp"

namespace gpushm::dra {

/// One subscribed kubelet. Sends the newest state and skips states that came while a write was in
/// flight. gRPC's last callback deletes it.
class health_service::stream
    : public grpc::ServerWriteReactor<v1alpha1::NodeWatchResourcesResponse> {
 public:
  explicit stream(health_service& of) : of_(of) {}

  void send(const v1alpha1::NodeWatchResourcesResponse& state) {
    const std::lock_guard lock(mutex_);
    next_ = state;
    waiting_ = true;
    write_next();
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(finished_, true)) {
      Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the driver is stopping"));
    }
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) {
      write_next();
    } else if (!std::exchange(finished_, true)) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the kubelet cancelled the stream"));
    }
  }
  void OnCancel() override { finish(); }
  void OnDone() override {
    of_.left(this);
    delete this;  // NOLINT(cppcoreguidelines-owning-memory): a reactor is its own owner
  }

 private:
  void write_next() {
    if (waiting_ && !writing_ && !finished_) {
      waiting_ = false;
      writing_ = true;
      current_ = next_;
      StartWrite(&current_);
    }
  }

  health_service& of_;
  std::mutex mutex_;
  bool waiting_ = false;
  bool writing_ = false;
  bool finished_ = false;
  v1alpha1::NodeWatchResourcesResponse next_;
  v1alpha1::NodeWatchResourcesResponse current_;
};

health_service::health_service(std::string pool, unsigned devices)
    : pool_(std::move(pool)), devices_(devices) {
  report({});
}

void health_service::report(const std::map<std::string, std::string>& problems) {
  const std::lock_guard lock(mutex_);
  now_.Clear();
  const std::int64_t time_s = std::time(nullptr);
  for (unsigned index = 0; index < devices_; ++index) {
    v1alpha1::DeviceHealth& each = *now_.add_devices();
    each.mutable_device()->set_pool_name(pool_);
    each.mutable_device()->set_device_name(device_name(index));
    each.set_last_updated_time(time_s);
    const auto problem = problems.find(each.device().device_name());
    each.set_health(problem == problems.end() ? v1alpha1::HEALTHY : v1alpha1::UNHEALTHY);
    if (problem != problems.end()) {
      each.set_message(problem->second);
    }
  }
  for (stream* const each : streams_) {
    each->send(now_);
  }
}

void health_service::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (stream* const each : streams_) {
    each->finish();
  }
}

grpc::ServerWriteReactor<v1alpha1::NodeWatchResourcesResponse>* health_service::NodeWatchResources(
    grpc::CallbackServerContext* /*context*/,
    const v1alpha1::NodeWatchResourcesRequest* /*request*/) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): gRPC's last callback deletes it
  auto* const new_stream = new stream(*this);
  const std::lock_guard lock(mutex_);
  streams_.push_back(new_stream);
  if (ended_) {
    new_stream->finish();
  } else {
    new_stream->send(now_);
  }
  return new_stream;
}

void health_service::left(stream* which) {
  const std::lock_guard lock(mutex_);
  streams_.remove(which);
}

}  // namespace gpushm::dra
