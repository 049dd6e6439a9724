// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/health_service.hpp"

#include <cstdint>
#include <ctime>
#include <list>
#include <mutex>
#include <utility>

#include "kubernetes/dra/driver/slice.hpp"
#include "kubernetes/kubelet_api/dra_health_v1.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_health_v1alpha1.grpc.pb.h"

namespace gpushm::dra {

namespace {

// Qualified from the global namespace: other sources abbreviate another `v1`.
struct health_v1 {
  using service = ::v1::DRAResourceHealth::CallbackService;
  using request = ::v1::NodeWatchResourcesRequest;
  using response = ::v1::NodeWatchResourcesResponse;
  static constexpr auto healthy = ::v1::HEALTHY;
  static constexpr auto unhealthy = ::v1::UNHEALTHY;
};
struct health_v1alpha1 {
  using service = ::v1alpha1::DRAResourceHealth::CallbackService;
  using request = ::v1alpha1::NodeWatchResourcesRequest;
  using response = ::v1alpha1::NodeWatchResourcesResponse;
  static constexpr auto healthy = ::v1alpha1::HEALTHY;
  static constexpr auto unhealthy = ::v1alpha1::UNHEALTHY;
};

}  // namespace

class health_services::version {
 public:
  version() = default;
  version(const version&) = delete;
  version& operator=(const version&) = delete;
  virtual ~version() = default;

  virtual void report(const std::map<std::string, std::string>& problems) = 0;
  virtual void end() = 0;
  [[nodiscard]] virtual grpc::Service* service() = 0;
};

template <typename Api>
class health_services::version_of final : public version, public Api::service {
 public:
  version_of(std::string pool, unsigned devices) : pool_(std::move(pool)), devices_(devices) {}

  void report(const std::map<std::string, std::string>& problems) override {
    const std::lock_guard lock(mutex_);
    now_.Clear();
    const std::int64_t time_s = std::time(nullptr);
    for (unsigned index = 0; index < devices_; ++index) {
      auto& each = *now_.add_devices();
      each.mutable_device()->set_pool_name(pool_);
      each.mutable_device()->set_device_name(device_name(index));
      each.set_last_updated_time(time_s);
      const auto problem = problems.find(each.device().device_name());
      each.set_health(problem == problems.end() ? Api::healthy : Api::unhealthy);
      if (problem != problems.end()) {
        each.set_message(problem->second);
      }
    }
    for (stream* const each : streams_) {
      each->send(now_);
    }
  }

  void end() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (stream* const each : streams_) {
      each->finish();
    }
  }

  [[nodiscard]] grpc::Service* service() override { return this; }

  grpc::ServerWriteReactor<typename Api::response>* NodeWatchResources(
      grpc::CallbackServerContext* /*context*/, const typename Api::request* /*request*/) override {
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

 private:
  /// One subscribed kubelet. Sends the newest state and skips states that came while a write was in
  /// flight. gRPC's last callback deletes it.
  class stream : public grpc::ServerWriteReactor<typename Api::response> {
   public:
    explicit stream(version_of& version) : of_(version) {}

    void send(const typename Api::response& state) {
      const std::lock_guard lock(mutex_);
      next_ = state;
      waiting_ = true;
      write_next();
    }
    void finish() {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(finished_, true)) {
        this->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the driver is stopping"));
      }
    }

    void OnWriteDone(bool ok) override {
      const std::lock_guard lock(mutex_);
      writing_ = false;
      if (ok) {
        write_next();
      } else if (!std::exchange(finished_, true)) {
        this->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the kubelet cancelled the stream"));
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
        this->StartWrite(&current_);
      }
    }

    version_of& of_;
    std::mutex mutex_;
    bool waiting_ = false;
    bool writing_ = false;
    bool finished_ = false;
    typename Api::response next_;
    typename Api::response current_;
  };

  void left(stream* stream) {
    const std::lock_guard lock(mutex_);
    streams_.remove(stream);
  }

  const std::string pool_;
  const unsigned devices_;
  std::mutex mutex_;
  bool ended_ = false;
  typename Api::response now_;
  std::list<stream*> streams_;
};

health_services::health_services(std::string pool, unsigned devices) {
  versions_.push_back(std::make_unique<version_of<health_v1>>(pool, devices));
  versions_.push_back(std::make_unique<version_of<health_v1alpha1>>(std::move(pool), devices));
  report({});
}

health_services::~health_services() = default;

void health_services::report(const std::map<std::string, std::string>& problems) {
  for (const auto& each : versions_) {
    each->report(problems);
  }
}

void health_services::end() {
  for (const auto& each : versions_) {
    each->end();
  }
}

std::vector<grpc::Service*> health_services::all() const {
  std::vector<grpc::Service*> result;
  result.reserve(versions_.size());
  for (const auto& each : versions_) {
    result.push_back(each->service());
  }
  return result;
}

}  // namespace gpushm::dra
