// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/driver.hpp"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/process/backoff.hpp"
#include "base/process/process.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/claims.hpp"
#include "kubernetes/dra/claims/observed.hpp"
#include "kubernetes/dra/driver/endpoints.hpp"
#include "kubernetes/dra/driver/health_service.hpp"
#include "kubernetes/dra/driver/node_service.hpp"
#include "kubernetes/dra/driver/slice_publisher.hpp"
#include "kubernetes/dra/driver/work_queue.hpp"

namespace gpushm::dra {

namespace {

using clock = std::chrono::steady_clock;

constexpr unsigned max_devices = 128;  // limit of a ResourceSlice
constexpr unsigned workers = 4;        // concurrent calls of each queue

driver_options complete(driver_options options) {
  constexpr const char* operation = "start DRA driver";
  if (options.node_name.empty()) {
    throw error(errc::invalid_argument,
                operation,
                options.driver_name,
                "the node has no name",
                "pass --node-name NAME, or set NODE_NAME from the pod's spec.nodeName");
  }
  if (options.share_devices == 0 || options.share_devices > max_devices) {
    throw error(errc::invalid_argument,
                operation,
                options.driver_name,
                fmt::format("{} devices cannot be published", options.share_devices),
                "pass --share-devices N with 1 to 128");
  }
  if (options.state_directory.empty()) {
    options.state_directory = options.kubelet_root + "/plugins/" + options.driver_name;
  }
  if (options.boot_id.empty()) {
    options.boot_id = base::this_process().boot_id;
  }
  return options;
}

claims_options claims_options_of(const driver_options& options) {
  claims_options result{{options.driver_name, options.node_name},
                        options.cdi_directory,
                        options.state_directory,
                        options.boot_id};
  result.ipc = options.ipc;
  return result;
}

}  // namespace

class driver::impl {
 public:
  impl(driver_options options,
       std::unique_ptr<cluster> owned,
       cluster& through,
       domains& opened,
       base::operation_observer* observer)
      : options_(complete(std::move(options))),
        owned_(std::move(owned)),
        through_(through),
        observer_(observer),
        api_(through),
        claims_(claims_options_of(options_), api_, through, opened),
        health_(options_.node_name, options_.share_devices),
        through_api_(workers),
        local_(workers),
        sweeps_(1),
        nodes_(claims_, through_api_, local_, observer),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() { stop(); }

  [[nodiscard]] driver_status status() const;
  void stop();

 private:
  void run(const std::stop_token& stop);
  bool restore(const std::stop_token& stop);
  void maintain();
  void serve();
  void start_publishing();
  void start_sweep();
  void sweep(bool ask_server);
  void start_api_check();
  void check_api();
  void handle_registration(const std::string& refusal);
  void set_problem(const std::string& text);

  const driver_options options_;
  const std::unique_ptr<cluster> owned_;
  cluster& through_;
  base::operation_observer* const observer_;
  resource_api api_;
  claims claims_;
  health_services health_;
  std::atomic<bool> sweeping_{false};
  std::atomic<bool> server_sweep_due_{true};
  std::string sweep_failure_;  ///< of the last sweep
  std::atomic<bool> checking_api_{false};

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  bool registration_changed_ = false;  ///< a kubelet's registration status since the last check
  driver_status status_;
  std::string refusal_;  ///< why the kubelet rejected the registration
  std::unique_ptr<slice_publisher> publisher_;

  clock::time_point next_health_;
  clock::time_point next_sweep_;
  clock::time_point next_server_sweep_;
  clock::time_point next_api_check_ = clock::now() + options_.api_check_delay;

  // Calls that do not need the API server never wait for those that do.
  work_queue through_api_;
  work_queue local_;
  work_queue sweeps_;
  node_services nodes_;
  std::unique_ptr<endpoints> endpoints_;
  std::jthread thread_;  // last: it uses all the others
};

void driver::impl::set_problem(const std::string& text) {
  std::string before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(status_.problem, text);
  }
  if (text != before) {
    base::log(text.empty() ? log_level::info : log_level::error,
              text.empty() ? "resolved: " + before : text);
  }
}

bool driver::impl::restore(const std::stop_token& stop) {
  base::backoff wait(base::backoff::duration(200), base::backoff::duration(5'000));
  while (!stop.stop_requested()) {
    try {
      for (const std::string& note : claims_.restore()) {
        base::log(log_level::warning, note);
      }
      set_problem({});
      return true;
    } catch (const std::exception& failure) {
      set_problem(failure.what());
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, wait.next(), [] { return false; });
  }
  return false;
}

void driver::impl::run(const std::stop_token& stop) {
  if (!restore(stop)) {
    return;
  }
  endpoints_ = std::make_unique<endpoints>(
      endpoints_options{options_.driver_name, options_.kubelet_root},
      [this] {
        std::vector<grpc::Service*> services = nodes_.all();
        const std::vector<grpc::Service*> health = health_.all();
        services.insert(services.end(), health.begin(), health.end());
        return services;
      }(),
      [this](const std::string& refusal) { handle_registration(refusal); });
  while (!stop.stop_requested()) {
    maintain();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, options_.check_interval, [this] {
      return std::exchange(registration_changed_, false);
    });
  }
}

void driver::impl::maintain() {
  serve();
  start_publishing();
  const clock::time_point now = clock::now();
  if (now >= next_health_) {
    next_health_ = now + options_.health_interval;
    health_.report(claims_.problems());
  }
  if (now >= next_sweep_) {
    next_sweep_ = now + options_.sweep_interval;
    if (now >= next_server_sweep_) {
      next_server_sweep_ = now + options_.server_sweep_interval;
      server_sweep_due_ = true;
    }
    start_sweep();
  }
  if (now >= next_api_check_) {
    next_api_check_ = now + options_.api_check_interval;
    start_api_check();
  }
}

void driver::impl::serve() {
  try {
    const std::string before = endpoints_->path();
    if (!endpoints_->ensure()) {
      return;
    }
    if (!before.empty()) {
      base::log(log_level::warning, "served again: a socket was missing: " + before);
    }
    const std::lock_guard lock(mutex_);
    status_.endpoint = endpoints_->path();
    status_.serving = true;
  } catch (const std::exception& failure) {
    set_problem(failure.what());
    return;
  }
  set_problem({});
}

void driver::impl::handle_registration(const std::string& refusal) {
  {
    const std::lock_guard lock(mutex_);
    status_.registered = refusal.empty();
    refusal_ = refusal;
    registration_changed_ = true;
  }
  changed_.notify_all();
  base::log(refusal.empty() ? log_level::info : log_level::error,
            refusal.empty() ? "the kubelet has registered DRA driver " + options_.driver_name
                            : fmt::format("the kubelet has not registered DRA driver {}: {}",
                                          options_.driver_name,
                                          refusal));
}

void driver::impl::start_publishing() {
  const std::lock_guard lock(mutex_);
  // Publishing earlier would attract pods that the kubelet could not start.
  if (status_.registered && !publisher_) {
    publisher_ = std::make_unique<slice_publisher>(
        slice_options{options_.driver_name, options_.node_name, options_.share_devices},
        api_,
        through_,
        observer_);
  }
}

void driver::impl::start_sweep() {
  if (!sweeping_.exchange(true)) {
    sweeps_.run([this, ask_server = server_sweep_due_.exchange(false)] {
      sweep(ask_server);
      sweeping_ = false;
    });
  }
}

void driver::impl::sweep(bool ask_server) {
  observed operation(observer_, "Sweep");
  claims::sweep_result result;
  try {
    result = claims_.sweep(ask_server);
  } catch (const std::exception& failure) {
    result.failure = failure.what();  // out of memory: the next sweep may succeed
  }
  for (const std::string& freed : result.freed) {
    base::log(log_level::info, fmt::format("freed {}, which is no longer in use", freed));
  }
  if (!result.failure.empty()) {
    server_sweep_due_ = server_sweep_due_ || ask_server;  // with the next sweep
    operation.failed(error(errc::peer_unreachable, "sweep claims", "", result.failure));
  }
  // Only one sweep runs at a time.
  const std::string before = std::exchange(sweep_failure_, result.failure);
  if (result.failure != before) {
    base::log(result.failure.empty() ? log_level::info : log_level::warning,
              result.failure.empty() ? "resolved: " + before : result.failure);
  }
}

void driver::impl::start_api_check() {
  const driver_status now = status();
  if (!(now.registered && now.published) && !checking_api_.exchange(true)) {
    sweeps_.run([this] {
      check_api();
      checking_api_ = false;
    });
  }
}

void driver::impl::check_api() {
  bool served = false;
  try {
    served = api_.is_served();
  } catch (const std::exception& failure) {  // as before; the client's observer counts it
    base::log(log_level::warning, failure.what());
    return;
  }
  std::optional<bool> before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(status_.api_served, served);
  }
  if (!served && before.value_or(true)) {
    base::log(log_level::warning,
              "the API server serves no version of resource.k8s.io that this driver supports: "
              "claims cannot be used in this cluster");
  } else if (served && !before.value_or(true)) {
    base::log(log_level::info, "the API server serves resource.k8s.io now");
  }
}

driver_status driver::impl::status() const {
  const std::lock_guard lock(mutex_);
  driver_status now = status_;
  now.claims = claims_.size();
  if (now.problem.empty() && !refusal_.empty()) {
    now.problem = "the kubelet rejects the registration: " + refusal_;
  }
  if (publisher_) {
    slice_publisher::state slices = publisher_->now();
    now.published = slices.published;
    now.slice_problem = std::move(slices.problem);
    if (now.published) {
      now.api_served = true;
    }
  }
  return now;
}

void driver::impl::stop() {
  thread_.request_stop();
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  health_.end();
  endpoints_.reset();
  std::unique_ptr<slice_publisher> last;
  {
    const std::lock_guard lock(mutex_);
    last = std::move(publisher_);
    status_.serving = false;
    status_.registered = false;
    status_.published = false;
    status_.endpoint.clear();
  }
}

driver::driver(driver_options options,
               const api_client::client& client,
               domains& opened,
               base::operation_observer* observer) {
  std::unique_ptr<cluster> owned = cluster_of(client);
  cluster& through = *owned;
  impl_ = std::make_unique<impl>(std::move(options), std::move(owned), through, opened, observer);
}

driver::driver(driver_options options,
               cluster& through,
               domains& opened,
               base::operation_observer* observer)
    : impl_(std::make_unique<impl>(std::move(options), nullptr, through, opened, observer)) {}

driver::~driver() = default;

driver_status driver::status() const {
  return impl_->status();
}

void driver::stop() {
  impl_->stop();
}

}  // namespace gpushm::dra
